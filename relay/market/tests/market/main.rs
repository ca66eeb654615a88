//! The market's calls as owners and nodes make them: real client, real server, over the loopback. What depends on the
//! store runs on SQLite and on PostgreSQL.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod claims;
mod client;
mod crash;
mod forming;
mod ledger;
mod rates;
mod relays;
mod trust;
mod world;

/// The same tests on both stores.
macro_rules! on_both_stores {
    ($($name:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(crate::world::World::new(crate::world::Kind::Sqlite).await).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(crate::world::World::new(crate::world::Kind::Postgres).await).await;
            })+
        }
    };
}
pub(crate) use on_both_stores;
