//! What is left after `helm uninstall` is what the docs say, and no more.

use kvasir_tests::cluster::{Site, eventually};

use super::{cluster, name};

#[test]
fn uninstalling_leaves_the_definition_and_the_lease() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-uninstalled");
    let kinds = site
        .kubectl(&["api-resources", "--namespaced", "--verbs=list", "--output=name"])
        .unwrap();
    let kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
    let left = || -> Vec<String> {
        let all = site
            .kubectl(&["get", &kinds.join(","), "--output=name", "--ignore-not-found"])
            .unwrap();
        // what Kubernetes itself puts into every namespace
        let theirs = ["configmap/kube-root-ca.crt", "serviceaccount/default"];
        all.lines()
            .filter(|line| !theirs.contains(line))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(left(), Vec::<String>::new());
    site.install(&[]);
    let ring = site.ring();
    site.apply(&ring).unwrap();
    site.wait_ready(name(&ring));
    site.kubectl(&["delete", "ring", name(&ring), "--timeout=120s"])
        .unwrap();
    site.uninstall();

    let lease = ["lease.coordination.k8s.io/kvasir-operator".to_owned()];
    let settled = eventually(super::SOON, || (left() == lease).then_some(()));
    assert!(settled.is_some(), "{:?}", left());
    let ours = "--selector=app.kubernetes.io/part-of=kvasir";
    let roles = site
        .kubectl(&["get", "clusterroles,clusterrolebindings", ours, "--output=name"])
        .unwrap();
    let ours: Vec<&str> = roles.lines().filter(|role| role.contains(site.namespace())).collect();
    assert!(ours.is_empty(), "{ours:?}");
    assert!(
        cluster.get(&["customresourcedefinition", "rings.kvasir.dev"]).is_some(),
        "the definition stays"
    );
}
