//! Invites in Secrets: made for rings with open windows, and renewed before they run out.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::Secret,
    jiff::{SignedDuration, Timestamp},
};
use kvasir_market::{ClientError, MarketClient, types::Enrolment};
use kvasir_wire::trust::NodeKeys;
use secrecy::SecretString;
use serde_json::json;

use crate::{
    files,
    running::World,
    world::{changed, eventually, open_middle},
};

const INVITE: &str = "smollm2-0-invite";
/// An invite is good for 90 days, and is renewed after 60.
const OLD: SignedDuration = SignedDuration::from_hours(61 * 24);

impl World {
    /// With a Ring that leaves its middle open.
    async fn inviting() -> World {
        let world = World::without_model().await;
        let model = files::model().await;
        world.apply(&changed(&open_middle(), "http://files.models.svc/smollm2.gguf", &model));
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invite_lets_devices_in_and_stays_while_it_is_young() {
    let world = World::inviting().await;
    let token = world.invite("token").unwrap();
    let owner = world.invite("owner").unwrap();
    let link = format!("{}/#token={token}&owner={owner}", world.relay);
    assert_eq!(world.invite("link"), Some(link));
    world.enrol(&token).await.unwrap();
    for round in 0..3 {
        let visits = world.visits();
        let touched = json!({"metadata": {"name": INVITE, "annotations": {"round": round.to_string()}}});
        world.api.put("secrets", "models", &touched);
        eventually("a visit", || world.visits() > visits).await;
    }
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
