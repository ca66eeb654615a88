//! `kvasir invite`, `status` and `join` for rings whose relay or owner this machine doesn't know.

use serde_json::{Value, json};

use crate::{Folder, fails, file, prints, text};

#[test]
fn a_ring_of_a_cluster_is_looked_up_there_and_the_command_says_how() {
    let folder = Folder::new();
    let source = file(&folder.path("model.gguf"));
    let up = folder.path("up");
    let relay = json!({"relay": {"url": "http://127.0.0.1:9"}});
    for (rest, told) in [
        (json!({}), "error: the Ring names no relay"),
        (relay, "error: this machine never ran the Ring tiny"),
    ] {
        let ring = folder.ring(&source, &rest);
        let (code, error) = fails(&["status", text(&ring), "--dir", text(&up)]);
        assert_eq!(code, 2);
        assert!(error.starts_with(told), "{error}");
        assert!(error.contains("`kubectl get ring tiny -o wide`"), "{error}");
        assert!(error.contains("`kubectl describe ring tiny`"), "{error}");
    }
    assert!(!up.exists(), "looking makes no folder");
}

#[test]
fn an_owner_learns_the_key_that_a_relay_has_to_admit_before_the_ring_ever_ran() {
    let folder = Folder::new();
    let ring = folder.ring(&file(&folder.path("model.gguf")), &json!({}));
    let up = folder.path("up");
    let show = |more: &[&str]| prints(&[&["invite", text(&ring), "--show-owner", "--dir", text(&up)], more].concat());
    let key = show(&[]);
    assert_eq!(key.trim_end().len(), 64);
    assert!(key.trim_end().chars().all(|digit| digit.is_ascii_hexdigit()), "{key}");
    let again: Value = serde_json::from_str(&show(&["-o", "json"])).unwrap();
    assert_eq!(again["owner"], key.trim_end(), "the key is made once");
}
