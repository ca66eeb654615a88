//! `kvasir up`: what it finds out before it fetches anything.

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, TcpListener},
};

use serde_json::json;

use crate::{Folder, fails, file, text};

#[test]
fn a_port_in_use_is_told_before_anything_is_fetched() {
    let folder = Folder::new();
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let source = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    source.set_nonblocking(true).unwrap();
    let url = format!("http://{}/model.gguf", source.local_addr().unwrap());
    let ring = folder.ring(&json!({"http": {"url": url}}), &json!({}));
    let (code, error) = fails(&["up", text(&ring), "--port", &port, "--dir", text(&folder.path("up"))]);
    assert_eq!(code, 1);
    let expected = format!(
        "error: can't listen on 127.0.0.1:{port}: end what uses it, or choose another port with --port\n  \
         because: Address already in use (os error 98)\n"
    );
    assert_eq!(error, expected);
    assert_eq!(
        source.accept().unwrap_err().kind(),
        ErrorKind::WouldBlock,
        "the source was asked"
    );
    assert!(!folder.path("up").exists());
}

#[test]
fn a_ready_file_that_cannot_be_written_is_told_before_anything_is_fetched() {
    let folder = Folder::new();
    let ring = folder.ring(&file(&folder.model()), &json!({}));
    let (ready, up) = (folder.path("no/such/ready.json"), folder.path("up"));
    let (code, error) = fails(&[
        "up",
        text(&ring),
        "--port",
        "0",
        "--dir",
        text(&up),
        "--ready-file",
        text(&ready),
    ]);
    assert_eq!(code, 1);
    assert!(
        error.starts_with(&format!(
            "error: can't write {}: choose another --ready-file",
            ready.display()
        )),
        "{error}"
    );
    assert!(!up.exists());
}
