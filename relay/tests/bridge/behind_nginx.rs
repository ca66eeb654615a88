//! A relay behind a proxy that cuts what is idle (C1).

use std::time::Duration;

use kvasir_relay::BridgeTimings;
use kvasir_tests::nginx::Nginx;
use kvasir_wire::edge::Role;
use tokio::io::AsyncReadExt as _;

use crate::relay::{LIMIT, Relay, Wish, dialer, passes};

#[tokio::test]
async fn c1_a_proxy_that_cuts_idle_connections_doesn_t_cut_a_leg() {
    let timings = BridgeTimings {
        ping_every: Duration::from_millis(300),
        ..BridgeTimings::default()
    };
    let relay = Relay::start(Wish {
        timings,
        ..Wish::default()
    })
    .await;
    // As 60 s are to the pings of 20 s that are the default.
    let directives = format!(
        "location /v1/ {{ proxy_pass http://{}; proxy_http_version 1.1; proxy_read_timeout 900ms;
         proxy_send_timeout 900ms; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }}",
        relay.address
    );
    let folder = tempfile::tempdir().unwrap();
    let nginx = Nginx::serve_with(folder.path(), &directives);
    let mut legs = Vec::new();
    for role in [Role::Predecessor, Role::Successor] {
        let leg = dialer().dial(&nginx.url(""), &relay.ticket(0, role), role, LIMIT).await;
        legs.push(leg.unwrap());
    }
    let [predecessor, successor] = &mut legs[..] else {
        panic!("two legs")
    };
    passes(predecessor, successor, &vec![3; 100_000]).await;
    // Read from, as an edge always does, so that pings are answered.
    let idle = async {
        tokio::join!(
            tokio::time::timeout(Duration::from_secs(3), predecessor.read_u8()),
            tokio::time::timeout(Duration::from_secs(3), successor.read_u8()),
        )
    };
    let (first, second) = idle.await;
    assert!(first.is_err() && second.is_err(), "{first:?} {second:?}");
    passes(successor, predecessor, &vec![4; 100_000]).await;
}
