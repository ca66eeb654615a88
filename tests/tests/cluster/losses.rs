//! What is lost comes back by itself, and takes nothing else with it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kvasir_tests::client::question;
use kvasir_tests::cluster::{Cluster, Site, eventually, run};
use kvasir_tests::ring::Ring;
use serde_json::Value;

use super::{SOON, answer, cluster, fixture, name, restarts, streamed, uid};

/// For a Ring to be Ready again after one of its pods was deleted.
const POD_BACK: Duration = Duration::from_secs(20);
/// For the stages of a dead node to serve on another.
const NODE_BACK: Duration = Duration::from_secs(90);
/// For an operator or a relay that was killed to do its work again.
const PART_BACK: Duration = Duration::from_secs(120);

#[test]
fn deleting_one_stages_pod_restarts_that_pod_alone() {
    let Some(cluster) = cluster() else { return };
    let (site, ring) = served(cluster, "kvasir-lost-pod", &[]);
    let before = site.stages(&ring);
    let epoch = eventually(SOON, || site.ready_epoch(&ring)).expect("an epoch");
    let expected = answer(site.client(&ring));
    let lost = before.iter().find(|pod| !is_rank_0(pod)).unwrap();
    let asked = Instant::now();
    site.kubectl(&["delete", "pod", name(lost), "--wait=false"]).unwrap();

    let again = eventually(POD_BACK, || site.ready_epoch(&ring).filter(|now| *now > epoch));
    assert!(again.is_some(), "not Ready again within {POD_BACK:?}");
    println!("Ready again after {:.1?}", asked.elapsed());
    assert_eq!(site.condition(&ring, "Ready").unwrap().status, "True");
    let after: BTreeMap<String, Value> = site
        .stages(&ring)
        .into_iter()
        .map(|pod| (uid(&pod).to_owned(), pod))
        .collect();
    assert_eq!(after.len(), before.len());
    for pod in &before {
        match after.get(uid(pod)) {
            Some(same) => assert_eq!(restarts(same), restarts(pod), "{} started again", name(pod)),
            None => assert_eq!(uid(pod), uid(lost), "{} was made again", name(pod)),
        }
    }
    assert_eq!(answer(site.client(&ring)), expected);
}

#[test]
fn the_stages_of_a_dead_node_move_to_another_of_its_pool() {
    let Some(cluster) = fixture() else { return };
    let own = cluster.own().unwrap();
    let site = Site::new(cluster, "kvasir-lost-node");
    // gone before the site, whose pods a dead node would keep
    let _restored = Restored(cluster);
    // The operator and the relay stay out of it, and the pool's stages begin on the node that dies.
    let here = "kubernetes\\.io/hostname=cpu-1";
    site.install(&[&format!("nodeSelector.{here}"), &format!("relay.nodeSelector.{here}")]);
    run(&mut cluster.kubectl(["cordon", "cpu-1"])).unwrap();
    let ring = site.ring();
    site.apply(&ring).unwrap();
    let ring = name(&ring).to_owned();
    site.wait_ready(&ring);
    run(&mut cluster.kubectl(["uncordon", "cpu-1"])).unwrap();
    let expected = answer(site.client(&ring));
    let on_cpu_2 = |pods: &[Value]| pods.iter().filter(|pod| pod["spec"]["nodeName"] == "cpu-2").count();
    assert!(on_cpu_2(&site.stages(&ring)) > 0);
    let epoch = eventually(SOON, || site.ready_epoch(&ring)).expect("an epoch");

    let killed = Instant::now();
    own.kill_node("cpu-2");
    let moved = eventually(NODE_BACK, || {
        let pods = site.stages(&ring);
        (on_cpu_2(&pods) == 0).then(|| site.ready_epoch(&ring).filter(|now| *now > epoch))?
    });
    let took = killed.elapsed();
    assert!(moved.is_some(), "not within {NODE_BACK:?}");
    assert_eq!(answer(site.client(&ring)), expected);
    println!("the stages of a dead node moved within {took:.1?}");
}

/// The nodes as they were, however the test ends.
struct Restored(&'static Cluster);

impl Drop for Restored {
    fn drop(&mut self) {
        let _ = run(&mut self.0.kubectl(["uncordon", "cpu-1"]));
        if let Some(own) = self.0.own() {
            own.revive_nodes();
        }
    }
}

#[test]
fn killing_the_operator_stops_no_answer() {
    let Some(cluster) = cluster() else { return };
    survives(&served(cluster, "kvasir-lost-operator", &[]), "operator");
}

#[test]
fn killing_the_relay_stops_no_answer_whose_edges_do_not_need_it() {
    let Some(cluster) = cluster() else { return };
    survives(&served(cluster, "kvasir-lost-relay", &[]), "relay");
}

/// Kills a part of the installation in the middle of an answer, which must come whole; afterwards all is as before.
fn survives((site, ring): &(Site, String), part: &str) {
    let chat = question("Tell me a long story about a ring.", 200);
    let expected = streamed(site, ring, &chat).text();
    let mut begun = streamed(site, ring, &chat);
    let mut text = begun.next_text().expect("a beginning");
    let selector = format!("--selector=app.kubernetes.io/component={part}");
    let before = site.list(&["pods", &selector]);
    site.kubectl(&[
        "delete",
        "pod",
        &selector,
        "--grace-period=0",
        "--force",
        "--wait=false",
    ])
    .unwrap();
    text += &begun.text();
    assert_eq!(text, expected);

    let deployment = format!("deployment/kvasir-{part}");
    let timeout = format!("--timeout={}s", PART_BACK.as_secs());
    site.kubectl(&["rollout", "status", &deployment, &timeout]).unwrap();
    let after = site.list(&["pods", &selector]);
    assert!(
        after.iter().all(|pod| uid(pod) != uid(&before[0])),
        "the {part} was killed"
    );
    site.wait_ready(ring);
    // The next change is made by the new one.
    site.kubectl(&["scale", "ring", ring, "--replicas=0"]).unwrap();
    let gone = eventually(PART_BACK, || site.stages(ring).is_empty().then_some(()));
    assert!(gone.is_some(), "scaled to 0");
    site.kubectl(&["scale", "ring", ring, "--replicas=1"]).unwrap();
    let back = eventually(PART_BACK, || (site.stages(ring).len() == 3).then_some(()));
    assert!(back.is_some(), "scaled to 1");
    site.wait_ready(ring);
    assert_eq!(streamed(site, ring, &chat).text(), expected);
}

/// A Ring that is Ready.
fn served(cluster: &'static Cluster, namespace: &str, settings: &[&str]) -> (Site, String) {
    let site = Site::new(cluster, namespace);
    site.install(settings);
    let ring = site.ring();
    site.apply(&ring).unwrap();
    let ring = name(&ring).to_owned();
    site.wait_ready(&ring);
    (site, ring)
}

fn is_rank_0(pod: &Value) -> bool {
    pod["metadata"]["labels"]["kvasir.dev/rank"] == "0"
}

#[test]
fn scaling_adds_whole_rings_behind_one_service() {
    let Some(cluster) = cluster() else { return };
    let (site, ring) = served(cluster, "kvasir-scaled", &[]);
    let local = Ring::up(&site.ring());
    let expected = answer(local.client());
    drop(local);
    site.kubectl(&["scale", "ring", &ring, "--replicas=2"]).unwrap();
    let both = eventually(Duration::from_secs(120), || {
        let object = site.get(&["ring", &ring])?;
        (object["status"]["readyReplicas"] == 2).then_some(())
    });
    assert!(both.is_some(), "two rings");
    let rank_0 = format!("--selector=kvasir.dev/ring={ring},kvasir.dev/rank=0");
    assert_eq!(site.list(&["pods", &rank_0]).len(), 2);
    for _ in 0..4 {
        assert_eq!(answer(site.client(&ring)), expected);
    }
}
