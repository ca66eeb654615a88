//! `kill -9` while positions are reported: what was acknowledged is there afterwards, and nothing twice.

use std::{
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use kvasir_market::types::Claim;

use crate::world::{Place, World, positions};

/// How often the market is killed.
const KILLS: u64 = 200;

/// The market as a process of its own.
struct Process {
    child: Child,
    url: String,
}

impl Process {
    fn start(place: &Place) -> Self {
        let mut command = Command::new(example());
        match place {
            Place::File(folder) => command.env("MARKET_FILE", folder.path().join("a market?%.db")),
            Place::Database(url) => command.env("DATABASE_URL", url),
        };
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        let stdout = child.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut url).unwrap();
        assert!(url.starts_with("http://"), "the market did not start");
        Process {
            child,
            url: url.trim_end().to_owned(),
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Cargo builds examples beside the tests.
fn example() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().parent().unwrap().join("examples/serve");
    assert!(
        path.is_file(),
        "{} is missing: run `cargo build --examples`",
        path.display()
    );
    path
}

crate::on_both_stores!(no_credit_is_lost_or_given_twice_however_often_the_market_is_killed);

async fn no_credit_is_lost_or_given_twice_however_often_the_market_is_killed(world: World) {
    let claims = world.formed().await;
    let World { place, nodes, .. } = &world;
    let mut acknowledged = 0;
    let (mut sent, mut cut_off) = (0, 0);
    // what a call takes here
    let mut usual = Duration::from_millis(3);
    for kill in 0..KILLS {
        let process = Process::start(place);
        let rank0 = world.node_at(&process.url, 0);
        // Dies now in the first calls, now in later ones; a multiplier without common factors spreads it.
        let dies = tokio::time::sleep(Duration::from_micros(500 + kill * 7919 % 12_000));
        tokio::pin!(dies);
        loop {
            sent += 7;
            let report = positions(1, sent);
            let began = Instant::now();
            tokio::select! {
                biased;
                () = &mut dies => {
                    // The call that is on its way may or may not arrive.
                    let call = tokio::spawn({
                        let rank0 = rank0.clone();
                        async move { rank0.positions(&report).await }
                    });
                    // now early in the call, now late: finer than the timers of tokio, which are of a millisecond
                    let within = usual.mul_f64((kill % 10) as f64 / 10.0);
                    tokio::task::spawn_blocking(move || std::thread::sleep(within)).await.unwrap();
                    process.kill();
                    match call.await.unwrap() {
                        Ok(answer) => acknowledged = acknowledged.max(answer.committed),
                        Err(_) => cut_off += 1,
                    }
                    break;
                }
                answer = rank0.positions(&report) => {
                    acknowledged = answer.unwrap().committed;
                    usual = began.elapsed();
                }
            }
        }
    }
    assert!(
        cut_off > KILLS / 20,
        "only {cut_off} calls were cut off: is the test blind?"
    );
    let process = Process::start(place);
    let counter = world
        .node_at(&process.url, 0)
        .positions(&positions(1, 0))
        .await
        .unwrap()
        .committed;
    assert!(
        acknowledged <= counter && counter <= sent,
        "{acknowledged} {counter} {sent}"
    );
    let worth = |claim: &Claim| (u128::from(claim.rate) * u128::from(counter) / 1_000_000) as u64;
    let mut sum = 0;
    for (claim, keys) in claims.iter().zip(nodes) {
        let client = kvasir_market::MarketClient::new(&process.url, keys.clone()).unwrap();
        let ledger = client.ledger().await.unwrap();
        assert_eq!(ledger.earned, worth(claim), "node of window {}", claim.windows);
        sum += ledger.earned;
    }
    let owner = kvasir_market::MarketClient::new(&process.url, world.owner.clone()).unwrap();
    let ledger = owner.ledger().await.unwrap();
    assert_eq!(ledger.earned, sum);
    assert_eq!(ledger.rows.iter().map(|row| row.earned).sum::<u64>(), sum);
    assert!(ledger.rows.iter().all(|row| row.committed == counter));
    process.kill();
}
