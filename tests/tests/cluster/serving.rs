//! From `helm install` to an answer.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kvasir_tests::client::question;
use kvasir_tests::cluster::{Site, eventually, run};
use serde_json::Value;

use super::{answer, answer_of_kvasir_up, cluster, name};

/// From `kubectl apply` to the first token, with the images on the nodes.
const FIRST_TOKEN: Duration = Duration::from_secs(60);

#[test]
fn three_pods_over_two_pools_fetch_only_their_windows_and_answer_as_kvasir_up_does() {
    let Some(cluster) = cluster() else { return };
    let site = Site::new(cluster, "kvasir-serving");
    site.install(&[]);
    let ring = site.ring();
    let started = Instant::now();
    site.apply(&ring).unwrap();
    let ring_name = name(&ring).to_owned();
    let client = site.client(&ring_name);
    let first = eventually(FIRST_TOKEN, || {
        client
            .stream(&question("Hello", 4))
            .ok()
            .and_then(|mut answer| answer.next_text())
    });
    let took = started.elapsed();
    assert!(first.is_some() && took <= FIRST_TOKEN, "the first token took {took:?}");
    println!("from kubectl apply to the first token: {took:.1?}");
    site.wait_ready(&ring_name);

    let pods = site.stages(&ring_name);
    assert_eq!(pods.len(), 3);
    let pools: BTreeSet<&str> = pods.iter().map(pool).collect();
    assert_eq!(pools, BTreeSet::from(["common", "gpu"]));
    for pod in &pods {
        let node = cluster
            .get(&["node", pod["spec"]["nodeName"].as_str().unwrap()])
            .unwrap();
        let kept_for_gpus = node["metadata"]["labels"]["kvasir.dev/pool"] == "gpu";
        assert_eq!(kept_for_gpus, pool(pod) == "gpu", "{}", name(pod));
    }

    let sent = site.sent();
    for pod in &pods {
        let plan = plan(&site, pod);
        let rank = rank_of(&plan, pod);
        let window = rank["bytes"].as_u64().unwrap();
        let parts = plan["model"]["prefixBytes"].as_array().unwrap();
        let prefix: u64 = parts.iter().map(|part| part.as_u64().unwrap()).sum();
        let fetched = sent
            .get(pod["status"]["podIP"].as_str().unwrap())
            .copied()
            .unwrap_or_default();
        assert!(fetched >= window, "{}: {fetched} of {window} bytes", name(pod));
        assert!(
            fetched <= window * 102 / 100 + prefix,
            "{}: {fetched} bytes for a window of {window} and a prefix of {prefix}",
            name(pod)
        );
    }

    let tested = run(&mut cluster.helm(["test", "kvasir", "--namespace", site.namespace()]));
    tested.unwrap_or_else(|told| panic!("{told}\n{}", logs_of_tests(&site)));
    let here = answer(client);
    assert_eq!(here, answer_of_kvasir_up(&ring));
}

/// What the pods of `helm test` printed. Those that succeeded are gone, so that its own `--logs` fails.
fn logs_of_tests(site: &Site) -> String {
    let selector = "--selector=app.kubernetes.io/name in (kvasir-operator-test,kvasir-relay-test)";
    site.kubectl(&["logs", selector, "--prefix"])
        .unwrap_or_else(|error| error)
}

fn pool(pod: &Value) -> &str {
    pod["metadata"]["labels"]["kvasir.dev/pool"].as_str().unwrap()
}

/// The plan that a pod was given.
fn plan(site: &Site, pod: &Value) -> Value {
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    let maps = volumes.iter().filter_map(|volume| volume["configMap"]["name"].as_str());
    let text = maps
        .filter_map(|map| site.get(&["configmap", map]))
        .find_map(|map| map["data"]["plan.json"].as_str().map(str::to_owned));
    serde_json::from_str(&text.expect("a plan among the pod's volumes")).unwrap()
}

/// The rank of a plan whose window a pod holds.
fn rank_of<'a>(plan: &'a Value, pod: &Value) -> &'a Value {
    let layers = pod["metadata"]["labels"]["kvasir.dev/layers"].as_str().unwrap();
    let ranks = plan["ranks"].as_array().unwrap();
    let found = ranks.iter().find(|rank| {
        let range = &rank["layers"];
        format!("{}-{}", range["start"], range["end"]) == layers
    });
    found.unwrap_or_else(|| panic!("no rank of {layers} in {plan}"))
}
