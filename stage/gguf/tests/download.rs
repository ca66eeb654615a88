//! Downloads as a whole: against a real server, killed in the middle, and without room.
#![allow(clippy::unwrap_used, reason = "tests end at the first surprise")]

mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use kvasir_gguf::fetch::{Progress, fetch};
use kvasir_gguf::source::{open, read_model};
use kvasir_gguf::window::window;
use kvasir_gguf::{Model, ModelSource, WindowRole};
use kvasir_tests::deadline::wait_until;
use kvasir_tests::models;
use kvasir_tests::nginx::Nginx;
use support::server::{Asked, Server, ranged, with};
use support::{access, add, expected, heavy, names, toy};

#[tokio::test]
async fn a_window_costs_its_own_bytes_and_the_prefix() {
    let model = models::smollm2();
    let nginx = Nginx::serve(model.parent().unwrap());
    let name = model.file_name().unwrap().to_str().unwrap();
    let prefix = Model::open(&model).unwrap().prefix_bytes()[0];
    let folder = tempfile::tempdir().unwrap();
    let mut seen = 0;
    for layers in [3..4, 10..15] {
        let reader = open(&ModelSource::Http { url: nginx.url(name) }, &access()).unwrap();
        let parsed = read_model(&*reader, &[]).await.unwrap();
        let mini = window(
            &parsed,
            &WindowRole {
                layers: layers.clone(),
                last: false,
            },
        )
        .unwrap();
        let target = folder.path().join(format!("{}.gguf", layers.start));
        let mut reports: Vec<Progress> = Vec::new();
        let fetched = fetch(&*reader, &mini, &target, |progress| reports.push(progress))
            .await
            .unwrap();
        assert!(std::fs::read(&target).unwrap() == expected(&model, &mini));

        let allowed = prefix + mini.fetched_bytes() * 102 / 100;
        let requests = || nginx.requests()[seen..].to_vec();
        wait_until("nginx has logged all", Duration::from_secs(5), || {
            requests().iter().map(|request| request.bytes).sum::<u64>() >= fetched.bytes_fetched + prefix
        });
        let requests = requests();
        seen += requests.len();
        let sent: u64 = requests.iter().map(|request| request.bytes).sum();
        assert!(sent <= allowed, "{sent} of {allowed} bytes: {requests:?}");
        assert!(
            requests
                .iter()
                .all(|request| request.status == 206 && request.method == "GET")
        );
        assert!(fetched.bytes_fetched <= mini.fetched_bytes() * 102 / 100);
        assert_eq!(reports.first().unwrap().done, 0);
        assert_eq!(
            reports.last().unwrap(),
            &Progress {
                done: fetched.bytes_fetched,
                total: fetched.bytes_fetched
            }
        );
        assert!(reports.windows(2).all(|pair| pair[0].done <= pair[1].done));
    }
}

#[tokio::test]
async fn s5_nginx_without_length_or_validator_will_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, heavy(4, 1 << 20).to_bytes()).unwrap();
    let nginx = Nginx::serve_with(folder.path(), "etag off; if_modified_since off;");
    let reader = open(
        &ModelSource::Http {
            url: nginx.url("m.gguf"),
        },
        &access(),
    )
    .unwrap();
    let model = read_model(&*reader, &[]).await.unwrap();
    assert_eq!(
        (model.identity(), reader.validator(0)),
        (Model::open(&path).unwrap().identity(), None)
    );
    let mini = window(
        &model,
        &WindowRole {
            layers: 1..2,
            last: false,
        },
    )
    .unwrap();
    fetch(&*reader, &mini, &folder.path().join("w.gguf"), |_| {})
        .await
        .unwrap();
    assert!(std::fs::read(folder.path().join("w.gguf")).unwrap() == expected(&path, &mini));
}

#[tokio::test]
async fn b1_nginx_that_ignores_ranges_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.gguf"), heavy(4, 1 << 20).to_bytes()).unwrap();
    let nginx = Nginx::serve_with(folder.path(), "max_ranges 0;");
    let reader = open(
        &ModelSource::Http {
            url: nginx.url("m.gguf"),
        },
        &access(),
    )
    .unwrap();
    let error = read_model(&*reader, &[]).await.unwrap_err();
    assert_eq!(error.reason(), "RangesNotHonoured");
}

#[tokio::test]
async fn b6_nginx_keeps_the_range_over_a_redirect() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, heavy(4, 1 << 20).to_bytes()).unwrap();
    let nginx = Nginx::serve_with(folder.path(), "location /moved { return 307 /m.gguf?signature=s; }");
    let reader = open(
        &ModelSource::Http {
            url: nginx.url("moved"),
        },
        &access(),
    )
    .unwrap();
    let model = read_model(&*reader, &[]).await.unwrap();
    assert_eq!(model.identity(), Model::open(&path).unwrap().identity());
    assert_eq!(reader.parts(), [nginx.url("moved")]);
}

#[tokio::test]
async fn b7_nginx_that_is_overloaded_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, heavy(2, 1 << 10).to_bytes()).unwrap();
    // every request but those for the file itself is turned away
    let nginx = Nginx::serve_with(folder.path(), "location /busy { return 503; }");
    let reader = open(&ModelSource::Http { url: nginx.url("busy") }, &access()).unwrap();
    let error = read_model(&*reader, &[]).await.unwrap_err();
    assert!(error.to_string().contains("answered 503 4 times"), "{error}");
    wait_until("nginx has logged all", Duration::from_secs(5), || {
        nginx.requests().len() == 4
    });
}

#[tokio::test]
async fn files_on_disk_are_read_like_those_on_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let model = models::gemma3();
    let reader = open(&ModelSource::File { path: model.clone() }, &access()).unwrap();
    let parsed = read_model(&*reader, &[]).await.unwrap();
    assert_eq!(parsed.identity(), Model::open(&model).unwrap().identity());
    let mini = window(
        &parsed,
        &WindowRole {
            layers: 5..8,
            last: false,
        },
    )
    .unwrap();
    let target = folder.path().join("new/folder/w.gguf");
    fetch(&*reader, &mini, &target, |_| {}).await.unwrap();
    assert!(std::fs::read(&target).unwrap() == expected(&model, &mini));

    let missing = open(
        &ModelSource::File {
            path: "/no/such.gguf".into(),
        },
        &access(),
    )
    .unwrap();
    let error = read_model(&*missing, &[]).await.unwrap_err();
    assert!(error.to_string().contains("/no/such.gguf"), "{error}");
}

#[tokio::test]
async fn b3_room_is_looked_for_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let there = rustix::fs::statvfs(folder.path()).unwrap();
    // a sparse file that says that a layer is larger than the disk
    let layer = (there.f_blocks * there.f_frsize).next_multiple_of(32);
    let mut file = toy(2);
    add(&mut file, "blk.1.attn_norm.weight", &[8]);
    add(&mut file, "blk.0.attn_q.weight", &[8, 4]);
    let mut bytes = file.to_bytes();
    let dims = bytes
        .windows(16)
        .position(|dims| dims == [8u64.to_le_bytes(), 4u64.to_le_bytes()].concat())
        .unwrap();
    bytes[dims + 8..dims + 16].copy_from_slice(&(layer / 32).to_le_bytes());
    let server = Server::start(move |asked: &Asked| {
        let mut response = ranged(&bytes, asked);
        let range = asked.range.clone().unwrap();
        let content = format!(
            "bytes {}-{}/{}",
            range.start,
            range.end.min(bytes.len() as u64) - 1,
            layer + (1 << 20)
        );
        response.headers_mut().insert("content-range", content.parse().unwrap());
        response
    })
    .await;
    let reader = open(
        &ModelSource::Http {
            url: server.url("m.gguf"),
        },
        &access(),
    )
    .unwrap();
    let model = read_model(&*reader, &[]).await.unwrap();
    let mini = window(
        &model,
        &WindowRole {
            layers: 0..1,
            last: false,
        },
    )
    .unwrap();
    let requests = server.asked().len();
    let error = fetch(&*reader, &mini, &folder.path().join("w.gguf"), |_| {})
        .await
        .unwrap_err();
    let text = error.to_string();
    assert_eq!(error.reason(), "NoSpace");
    assert!(text.contains(" more and ") && text.contains(" are free"), "{text}");
    assert_eq!(server.asked().len(), requests, "no payload was asked for");
    assert_eq!(names(folder.path()), Vec::<String>::new());
}

#[tokio::test]
async fn b3_two_processes_do_not_write_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, heavy(2, 1 << 20).to_bytes()).unwrap();
    let journal = std::fs::File::create(folder.path().join("w.gguf.journal")).unwrap();
    journal.lock().unwrap();
    let reader = open(&ModelSource::File { path }, &access()).unwrap();
    let model = read_model(&*reader, &[]).await.unwrap();
    let mini = window(
        &model,
        &WindowRole {
            layers: 0..1,
            last: false,
        },
    )
    .unwrap();
    let target = folder.path().join("w.gguf");
    let error = fetch(&*reader, &mini, &target, |_| {}).await.unwrap_err();
    assert!(matches!(error, kvasir_gguf::fetch::Error::Locked { .. }), "{error}");
    drop(journal);
    fetch(&*reader, &mini, &target, |_| {}).await.unwrap();
}

/// Set for the process that is killed: address of the model, and where its window goes.
const CHILD: &str = "KVASIR_TEST_DOWNLOAD";

/// Layers 0…3 of 12 MiB each: six pieces of 6 MiB.
async fn download(url: &str, target: &Path) -> u64 {
    let reader = open(&ModelSource::Http { url: url.into() }, &access()).unwrap();
    let model = read_model(&*reader, &[]).await.unwrap();
    let mini = window(
        &model,
        &WindowRole {
            layers: 0..3,
            last: false,
        },
    )
    .unwrap();
    fetch(&*reader, &mini, target, |_| {}).await.unwrap().bytes_fetched
}

#[tokio::test]
async fn child_of_b3() {
    if let Ok(child) = std::env::var(CHILD) {
        let (url, target) = child.split_once(' ').unwrap();
        download(url, Path::new(target)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b3_a_download_that_is_killed_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("m.gguf");
    let bytes = Arc::new(heavy(4, 12 << 20).to_bytes());
    std::fs::write(&source, &*bytes).unwrap();
    let mini = window(
        &Model::open(&source).unwrap(),
        &WindowRole {
            layers: 0..3,
            last: false,
        },
    )
    .unwrap();

    // the server falls silent after some pieces
    let pieces = |asked: &[Asked]| {
        asked
            .iter()
            .filter(|asked| asked.range.as_ref().unwrap().end > 1 << 20)
            .count()
    };
    let silent = Arc::clone(&bytes);
    let server = Server::start(move |asked: &Asked| {
        if asked.index > 3 {
            let range = asked.range.clone().unwrap();
            let headers = [(
                "content-range",
                format!("bytes {}-{}/{}", range.start, range.end - 1, silent.len()),
            )];
            let silence = futures::stream::pending::<Result<axum::body::Bytes, std::io::Error>>();
            return with(206, &headers, axum::body::Body::from_stream(silence));
        }
        ranged(&silent, asked)
    })
    .await;
    let target = folder.path().join("w.gguf");
    let journal = folder.path().join("w.gguf.journal");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_of_b3"])
        .env(CHILD, format!("{} {}", server.url("m.gguf"), target.display()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let lines = || std::fs::read_to_string(&journal).unwrap_or_default().lines().count();
    tokio::task::block_in_place(|| wait_until("three pieces are there", Duration::from_secs(60), || lines() >= 4));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!target.exists(), "the final name only ever holds a complete file");
    let kept = lines() - 1;

    let good = Server::start(move |asked| ranged(&bytes, asked)).await;
    let fetched = download(&good.url("m.gguf"), &target).await;
    assert_eq!(pieces(&good.asked()), 5 - kept, "{:?}", good.asked());
    assert!(fetched < mini.fetched_bytes() / 2);
    assert!(std::fs::read(&target).unwrap() == expected(&source, &mini));
    assert_eq!(names(folder.path()), ["m.gguf", "w.gguf", "w.gguf.journal"]);
}
