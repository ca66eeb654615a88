//! Models that can't be read: every command says what is wrong with them.

use std::{fs, path::Path};

use serde_json::json;

use crate::{Folder, fails, file, text};

#[test]
fn a_file_that_is_no_gguf_is_named() {
    let folder = Folder::new();
    let model = folder.path("model.gguf");
    fs::write(&model, vec![b'x'; 100_000]).unwrap();
    let ring = folder.ring(&file(&model), &json!({}));
    for arguments in [
        vec!["plan", text(&ring)],
        vec!["slice", text(&model), "0..1", "-o", "out.gguf"],
    ] {
        let (code, error) = fails(&arguments);
        assert_eq!(code, 1);
        assert!(error.starts_with(&format!("error: {} ", model.display())), "{error}");
        assert!(error.contains("GGUF"), "{error}");
    }
    assert!(!Path::new("out.gguf").exists());
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let folder = Folder::new();
    let pipe = folder.path("pipe");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    for (path, kind) in [
        (pipe.as_path(), "a pipe"),
        (Path::new("/dev/zero"), "a device"),
        (Path::new("/tmp"), "a folder"),
    ] {
        let ring = folder.ring(&file(path), &json!({}));
        let (code, error) = fails(&["plan", text(&ring)]);
        assert_eq!(code, 1);
        let told = format!(
            "error: {} is {kind} and no file: name the model's file\n",
            path.display()
        );
        assert_eq!(error, told);
        let (_, error) = fails(&["slice", text(path), "0..1", "-o", text(&folder.path("out.gguf"))]);
        assert_eq!(error, told);
        let (_, error) = fails(&["plan", text(path)]);
        assert!(error.contains(&format!("it is {kind} and no file")), "{error}");
    }
}

#[test]
fn files_that_are_too_short_are_told_by_what_they_lack() {
    let folder = Folder::new();
    let model = folder.path("model.gguf");
    let ring = folder.ring(&file(&model), &json!({}));
    fs::write(&model, "").unwrap();
    let (_, error) = fails(&["plan", text(&ring)]);
    assert!(
        error.starts_with(&format!("error: {} is empty", model.display())),
        "{error}"
    );
    fs::write(&model, b"GGUF\x03\0\0\0").unwrap();
    let (_, error) = fails(&["plan", text(&ring)]);
    assert!(error.contains("has 8 bytes and needs 16 bytes or more"), "{error}");
}

#[test]
fn addresses_of_other_kinds_are_refused_with_what_is_supported() {
    let folder = Folder::new();
    let ring = folder.ring(&file(Path::new("ftp://host/model.gguf")), &json!({}));
    let (code, error) = fails(&["plan", text(&ring)]);
    assert_eq!(code, 2);
    assert!(
        error.contains("huggingFace, http (http:// or https://) or file"),
        "{error}"
    );
    let ring = folder.ring(&json!({"http": {"url": "ftp://host/model.gguf"}}), &json!({}));
    let (code, error) = fails(&["plan", text(&ring)]);
    assert_eq!(code, 2);
    assert!(error.contains("url must start with http:// or https://"), "{error}");
    let (code, error) = fails(&["slice", "ftp://host/model.gguf", "0..1", "-o", "out.gguf"]);
    assert_eq!(code, 2);
    assert!(
        error.contains("http:// or https:// URL, or hf://OWNER/NAME/FILE.gguf"),
        "{error}"
    );
}
