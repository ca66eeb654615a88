//! A model on a volume that all stages mount.

use std::fs;

use kvasir_tests::cluster::{Site, eventually, run};
use kvasir_tests::models;
use serde_json::json;

use super::{SOON, answer, answer_of_kvasir_up, fixture, name};

const VOLUME: &str = "kvasir-models";

/// On the fixture, whose nodes have this machine's files.
#[test]
fn a_model_on_a_volume_is_described_by_a_job_and_served() {
    let Some(cluster) = fixture() else { return };
    let site = Site::new(cluster, "kvasir-volumes");
    site.install(&[]);
    let folder = site.path("volume");
    fs::create_dir(&folder).unwrap();
    fs::copy(models::smollm2(), folder.join("model.gguf")).unwrap();
    let volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": { "name": VOLUME },
        "spec": {
            "capacity": { "storage": "1Gi" },
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "",
            "claimRef": { "namespace": site.namespace(), "name": "models" },
            "hostPath": { "path": folder, "type": "Directory" },
        },
    });
    let claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": "models" },
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "",
            "volumeName": VOLUME,
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    // one of a cluster that was kept
    let remove = || {
        let mut command = cluster.kubectl([
            "delete",
            "persistentvolume",
            VOLUME,
            "--ignore-not-found",
            "--wait=false",
        ]);
        run(&mut command)
    };
    remove().unwrap();
    cluster.apply(&volume, &[]).unwrap();
    site.apply(&claim).unwrap();

    let served = site.ring();
    let mut ring = served.clone();
    ring["spec"]["model"]["source"] = json!({
        "persistentVolumeClaim": { "claimName": "models", "path": "model.gguf" },
    });
    site.apply(&ring).unwrap();
    site.wait_ready(name(&ring));
    assert_eq!(answer(site.client(name(&ring))), answer_of_kvasir_up(&served));
    let done = eventually(SOON, || site.list(&["jobs"]).is_empty().then_some(()));
    assert!(done.is_some(), "the Job goes when it has told what it read");
    drop(site);
    remove().unwrap();
}
