//! Events: the newest words are to be read, and the same words are counted.

use kvasir_operator::events::{Events, Note};
use serde_json::json;

use crate::{
    api_server::ApiServer,
    world::{RING, ring},
};

fn note(text: &str) -> Note {
    Note {
        is_warning: true,
        reason: "StageFailed".into(),
        action: "Ready".into(),
        text: text.into(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_words_are_counted_and_other_words_are_another_event() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (api, client) = ApiServer::start().await;
    let events = Events::new(client, "operator");
    for text in ["the disk is full", "the disk is full", "the file is not there"] {
        events.tell(&ring(RING), note(text)).await;
    }
    let told = api.events();
    let methods: Vec<&str> = told.iter().map(|(method, _)| method.as_str()).collect();
    assert_eq!(methods, ["POST", "PATCH", "POST"]);
    assert_eq!(told[0].1["note"], "the disk is full");
    assert_eq!(
        (
            &told[0].1["type"],
            &told[0].1["reason"],
            &told[0].1["regarding"]["name"]
        ),
        (&json!("Warning"), &json!("StageFailed"), &json!("smollm2"))
    );
    assert_eq!(told[1].1["series"]["count"], 2);
    assert_eq!(told[1].1["note"], json!(null), "a note can't be changed");
    assert_eq!(told[2].1["note"], "the file is not there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notes_are_cut_to_what_the_api_takes() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (api, client) = ApiServer::start().await;
    Events::new(client, "operator")
        .tell(&ring(RING), note(&"ä".repeat(2000)))
        .await;
    assert!(api.events()[0].1["note"].as_str().unwrap().len() <= 1024);
}
