//! The charts as files, and every object that they can render under the eyes of the API server.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use kvasir_tests::cluster::{Cluster, repository, run};
use kvasir_tests::deadline::wait_until;

use super::{SOON, cluster};

/// Namespaces that the renders name.
const NAMED: [&str; 3] = ["kvasir-system", "models", "research"];

#[test]
fn charts_pass_a_strict_lint_and_render_as_committed() {
    // helm is the cluster's
    if cluster().is_none() {
        return;
    }
    let done = Command::new(repository().join("scripts/charts.sh")).output().unwrap();
    let told = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{told}{}", String::from_utf8_lossy(&done.stderr));
    assert!(told.trim_end().ends_with(" 0 failed"), "{told}");
}

#[test]
fn every_rendered_object_is_taken_by_the_api_server() {
    let Some(cluster) = cluster() else { return };
    let _foreign = Foreign::new(cluster);
    let renders = renders();
    assert!(renders.len() >= 10, "{renders:?}");
    for file in renders {
        let mut dry = cluster.kubectl([
            "apply",
            "--server-side",
            "--force-conflicts",
            "--dry-run=server",
            "--filename",
        ]);
        let done = dry.arg(&file).output().unwrap();
        let told = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{}: {told}", file.display());
        // such as a pod that is not "restricted", an unknown field, or an API on its way out
        assert!(!told.contains("Warning"), "{}: {told}", file.display());
    }
}

/// The committed renders of all charts.
fn renders() -> Vec<PathBuf> {
    let charts = fs::read_dir(repository().join("charts")).unwrap();
    let folders = charts.map(|chart| chart.unwrap().path().join("tests/golden"));
    folders
        .flat_map(|folder| fs::read_dir(folder).into_iter().flatten())
        .map(|file| file.unwrap().path())
        .collect()
}

/// What the renders take for granted: namespaces, and definitions of others that this cluster lacks.
struct Foreign {
    cluster: &'static Cluster,
    definitions: PathBuf,
}

impl Foreign {
    fn new(cluster: &'static Cluster) -> Self {
        let definitions = repository().join("tests/cluster/foreign.yaml");
        let foreign = Foreign { cluster, definitions };
        run(cluster
            .kubectl(["apply", "--server-side", "--filename"])
            .arg(&foreign.definitions))
        .unwrap();
        for namespace in NAMED {
            run(&mut cluster.kubectl(["create", "namespace", namespace])).unwrap();
            let warn = "pod-security.kubernetes.io/warn=restricted";
            run(&mut cluster.kubectl(["label", "namespace", namespace, warn])).unwrap();
        }
        wait_until("the definitions are served", SOON, || {
            let mut wait = cluster.kubectl(["wait", "--for=condition=Established", "--timeout=10s", "--filename"]);
            run(wait.arg(&foreign.definitions)).is_ok()
        });
        foreign
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let mut delete = self.cluster.kubectl(["delete", "--ignore-not-found", "--filename"]);
        let _ = run(delete.arg(&self.definitions));
        for namespace in NAMED {
            let _ = run(&mut self
                .cluster
                .kubectl(["delete", "namespace", namespace, "--ignore-not-found"]));
        }
    }
}
