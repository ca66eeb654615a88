//! Invites in Secrets: made for rings with open windows, and renewed before they run out.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::Secret,
    jiff::{SignedDuration, Timestamp},
};
use kvasir_market::{ClientError, MarketClient, router, types::Enrolment};
use kvasir_wire::trust::NodeKeys;
use secrecy::SecretString;
use serde_json::json;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::{
    files::{self, serve},
    running::{World, market},
    world::{changed, eventually, open_middle},
};

const INVITE: &str = "smollm2-0-invite";
/// An invite is good for 90 days, and is renewed after 60.
const OLD: SignedDuration = SignedDuration::from_hours(61 * 24);

/// A Ring that leaves its middle open.
fn inviting(model: &str) -> String {
    changed(&open_middle(), "http://files.models.svc/smollm2.gguf", model)
}

impl World {
    /// With a Ring that leaves its middle open.
    async fn inviting() -> World {
        World::inviting_on(serve(router(market().await)).await).await
    }

    /// The same with a relay that is there.
    async fn inviting_on(relay: String) -> World {
        let world = World::on(relay).await;
        world.apply(&inviting(&files::model().await));
        world.another_invite("").await;
        world
    }

    /// A part of the invite's Secret.
    fn invite(&self, part: &str) -> Option<String> {
        let secret = self.api.get("secrets", "models", INVITE)?;
        let secret: Secret = serde_json::from_value(secret).unwrap();
        Some(String::from_utf8(secret.data?.remove(part)?.0).unwrap())
    }

    /// Waits for an invite other than this one.
    async fn another_invite(&self, before: &str) -> String {
        let other = || self.invite("token").filter(|token| token != before);
        eventually("an invite", || other().is_some()).await;
        other().unwrap()
    }

    /// Several visits of the Ring.
    async fn visited(&self) {
        for round in 0..3 {
            let visits = self.visits();
            let touched = json!({"metadata": {"name": INVITE, "annotations": {"round": round.to_string()}}});
            self.api.put("secrets", "models", &touched);
            eventually("a visit", || self.visits() > visits).await;
        }
    }

    /// A device that nobody has seen before enrols.
    async fn enrol(&self, token: &str) -> Result<(), ClientError> {
        let keys = Arc::new(NodeKeys::generate().unwrap());
        let enrolment = Enrolment {
            name: None,
            platform: "linux-x86_64".into(),
            memory: 1 << 30,
        };
        let market = MarketClient::new(&self.relay, keys).unwrap();
        market.enrol(&SecretString::from(token), &enrolment).await.map(|_| ())
    }
}

/// An address that stays while what answers there is replaced, as a Service is before a relay's pods.
async fn service(first: String) -> (String, watch::Sender<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (behind, now) = watch::channel(first);
    tokio::spawn(async move {
        while let Ok((mut caller, _)) = listener.accept().await {
            let mut now = now.clone();
            let pod = now.borrow_and_update().trim_start_matches("http://").to_owned();
            tokio::spawn(async move {
                let mut pod = TcpStream::connect(pod).await.unwrap();
                // connections end with their pod
                tokio::select! {
                    _ = copy_bidirectional(&mut caller, &mut pod) => {}
                    _ = now.changed() => {}
                }
            });
        }
    });
    (address, behind)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invite_lets_devices_in_and_stays_while_it_is_young() {
    let world = World::inviting().await;
    let token = world.invite("token").unwrap();
    let owner = world.invite("owner").unwrap();
    let link = format!("{}/#token={token}&owner={owner}", world.relay);
    assert_eq!(world.invite("link"), Some(link));
    world.enrol(&token).await.unwrap();
    world.visited().await;
    assert_eq!(world.invite("token"), Some(token));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invite_is_renewed_before_it_runs_out_and_the_old_one_stays_good() {
    let world = World::inviting().await;
    let first = world.invite("token").unwrap();
    let made = (Timestamp::now() - OLD).to_string();
    let aged = json!({"metadata": {"name": INVITE, "creationTimestamp": made}});
    world.api.put("secrets", "models", &aged);
    let second = world.another_invite(&first).await;
    world.enrol(&second).await.unwrap();
    world.enrol(&first).await.unwrap();
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invite_whose_secret_was_deleted_is_made_anew() {
    let world = World::inviting().await;
    let first = world.invite("token").unwrap();
    world.api.delete("secrets", "models", INVITE);
    let second = world.another_invite(&first).await;
    world.enrol(&second).await.unwrap();
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invite_that_the_market_lost_with_its_ring_is_made_anew_once() {
    let (relay, behind) = service(serve(router(market().await)).await).await;
    let world = World::inviting_on(relay).await;
    let first = world.invite("token").unwrap();
    behind.send_replace(serve(router(market().await)).await);
    let second = world.another_invite(&first).await;
    assert_eq!(world.enrol(&first).await.unwrap_err().reason(), "UnknownInvite");
    world.enrol(&second).await.unwrap();
    world.visited().await;
    assert_eq!(world.invite("token"), Some(second));
    assert_eq!(world.asked(&format!("POST secrets/{INVITE}")), 2);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invite_whose_relay_has_another_address_now_is_made_anew_once() {
    let market = market().await;
    let world = World::on(serve(router(market.clone())).await).await;
    let ring = inviting(&files::model().await);
    world.apply(&ring);
    let first = world.another_invite("").await;
    // the same market by another door
    let public = serve(router(market)).await;
    let url = format!("  relay: {{url: '{public}'}}\n  pools:");
    world.apply(&changed(&ring, "  pools:", &url));
    let second = world.another_invite(&first).await;
    let link = format!("{public}/#token={second}&owner={}", world.invite("owner").unwrap());
    assert_eq!(world.invite("link"), Some(link));
    world.enrol(&second).await.unwrap();
    world.visited().await;
    assert_eq!(world.invite("token"), Some(second));
    assert_eq!(world.asked(&format!("POST secrets/{INVITE}")), 2);
    world.end().await;
}
