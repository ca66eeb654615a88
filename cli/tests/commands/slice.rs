//! `kvasir slice`: a window as a file, or nothing at all.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener},
    path::Path,
};

use crate::{Folder, fails, prints, text};

#[test]
fn a_slice_is_a_window_and_the_first_one_brings_its_vocabulary() {
    let folder = Folder::new();
    let (model, out) = (folder.model(), folder.path("window.gguf"));
    let said = prints(&["slice", text(&model), "0..3", "-o", text(&out), "--first"]);
    let vocabulary = folder.path("window.vocab.gguf");
    assert_eq!(said.lines().count(), 2);
    let window = kvasir_gguf::Model::open(&out).unwrap();
    assert_eq!(window.layers(), 3);
    assert!(kvasir_gguf::Model::open(&vocabulary).is_ok());
    assert!(fs::metadata(&out).unwrap().len() < fs::metadata(&model).unwrap().len());
    assert_eq!(
        folder.names(),
        ["model.gguf", "window.gguf", "window.vocab.gguf"],
        "and nothing beside them"
    );
}

#[test]
fn a_slice_that_fails_leaves_nothing_and_makes_no_folder() {
    let folder = Folder::new();
    let model = folder.model();
    // the table of tensors is whole, their bytes are not there to the end
    let source = fs::File::options().write(true).open(&model).unwrap();
    let out = folder.path("window.gguf");
    let missing = folder.path("no/such/window.gguf");
    let (code, error) = fails(&["slice", text(&model), "0..3", "-o", text(&missing)]);
    assert_eq!(code, 1);
    let told = format!(
        "error: can't write into {}: make the folder first\n",
        missing.parent().unwrap().display()
    );
    assert!(error.starts_with(&told), "{error}");
    source.set_len(fs::metadata(&model).unwrap().len() / 2).unwrap();
    let (code, error) = fails(&["slice", text(&model), "0..3", "-o", text(&out)]);
    assert_eq!(code, 1);
    assert!(error.contains("model.gguf"), "{error}");
    assert_eq!(folder.names(), ["model.gguf"]);
}

/// A server that gives the beginning of a file, and then answers every request with a failure.
fn source_that_ends(model: &Path, given: usize) -> String {
    let bytes = fs::read(model).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}/model.gguf", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let (mut request, mut piece) = (Vec::new(), [0; 4096]);
            while !request.ends_with(b"\r\n\r\n") {
                match stream.read(&mut piece) {
                    Ok(count @ 1..) => request.extend_from_slice(&piece[..count]),
                    _ => break,
                }
            }
            let request = String::from_utf8_lossy(&request).to_ascii_lowercase();
            let range = request.split("range: bytes=").nth(1).and_then(|rest| {
                let (start, end) = rest.lines().next()?.split_once('-')?;
                Some((start.parse::<usize>().ok()?, end.trim().parse::<usize>().ok()?))
            });
            let answer = match range {
                Some((start, end)) if start < given => {
                    let part = &bytes[start..=end.min(bytes.len() - 1)];
                    let head = format!(
                        "HTTP/1.1 206 Partial Content\r\ncontent-range: bytes {start}-{}/{}\r\ncontent-length: {}\r\n\
                         connection: close\r\n\r\n",
                        start + part.len() - 1,
                        bytes.len(),
                        part.len()
                    );
                    [head.as_bytes(), part].concat()
                }
                _ => b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec(),
            };
            let _ = stream.write_all(&answer);
        }
    });
    url
}

#[test]
fn a_slice_that_breaks_off_leaves_nothing() {
    let folder = Folder::new();
    let model = folder.model();
    let prefix = kvasir_gguf::Model::open(&model).unwrap().prefix_bytes()[0];
    let url = source_that_ends(&model, prefix as usize);
    let out = folder.path("window.gguf");
    let (code, error) = fails(&["slice", &url, "2..4", "-o", text(&out)]);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("forbids reading"), "{error}");
    assert_eq!(folder.names(), ["model.gguf"]);
}

#[test]
fn a_slice_outside_the_model_or_at_the_wrong_end_is_refused() {
    let folder = Folder::new();
    let (model, out) = (folder.model(), folder.path("window.gguf"));
    let slice = |rest: &[&str]| fails(&[&["slice", text(&model), "-o", text(&out)], rest].concat());
    let (code, error) = slice(&["4..9"]);
    assert_eq!(
        (code, error.as_str()),
        (2, "error: layers 4..9 are not within the model's 8 layers\n")
    );
    for (wrong, told) in [
        (["0..3", "--last"], "must end at layer 8"),
        (["2..3", "--first"], "starts at layer 0"),
    ] {
        let (code, error) = slice(&wrong);
        assert_eq!(code, 2, "{error}");
        assert!(error.contains(told), "{error}");
    }
    let (code, error) = slice(&["3..3"]);
    assert_eq!(code, 2);
    assert!(error.contains("write START..END with START below END"), "{error}");
    assert!(!out.exists());
}
