//! A model on a volume: the Job that reads it, what is told meanwhile, and what becomes of the Job.

use serde_json::{Value, json};

use crate::{
    running::{World, on_volume},
    world::{eventually, model},
};

const JOB: &str = "smollm2-reader";
const POD: &str = "smollm2-reader-x";
const MADE: &str = "POST jobs/smollm2-reader";
const REMOVED: &str = "DELETE jobs/smollm2-reader";

impl World {
    /// With a Ring whose model nobody has read, and the Job that is to.
    async fn reading() -> World {
        let world = World::without_model().await;
        world.apply(&on_volume());
        world.job(1).await;
        world
    }

    /// Waits for the Job, made for the time `count`.
    async fn job(&self, count: usize) -> Value {
        eventually("the Job", || self.asked(MADE) == count).await;
        self.api.get("jobs", "models", JOB).unwrap()
    }

    /// The Job's pod as the kubelet tells of it: made by the Job's own template.
    fn pod(&self, status: &Value) {
        let job = self.api.get("jobs", "models", JOB).unwrap();
        let mut labels = job["spec"]["template"]["metadata"]["labels"].clone();
        labels["batch.kubernetes.io/job-name"] = json!(JOB);
        let pod = json!({"metadata": {"name": POD, "labels": labels}, "status": status});
        self.api.put("pods", "models", &pod);
    }

    /// The Job is over, as its controller tells after its pod has ended.
    fn over(&self, type_: &str) {
        let status = json!({"conditions": [{"type": type_, "status": "True"}]});
        let job = json!({"metadata": {"name": JOB}, "status": status});
        self.api.put("jobs", "models", &job);
        self.touch();
    }

    /// Something happens to the pod, so that the Ring is visited.
    fn touch(&self) {
        let touched = json!({"metadata": {"name": POD, "annotations": {"visits": self.visits().to_string()}}});
        self.api.put("pods", "models", &touched);
    }

    /// The Job's pod has printed this and ended well.
    fn printed(&self, text: &str) {
        self.api.log("models", POD, text);
        self.pod(&json!({"phase": "Succeeded"}));
        self.over("Complete");
    }

    async fn resolved(&self, said: &str) {
        eventually(said, || self.said("ModelResolved").as_deref() == Some(said)).await;
    }
}

fn profile() -> String {
    let profile = serde_json::to_string(&*model()).unwrap();
    format!("2026-11-30T12:00:00Z  INFO reading\n{profile}\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_on_a_volume_is_read_by_a_job_once() {
    let world = World::reading().await;
    let job = world.job(1).await;
    let pod = &job["spec"]["template"]["spec"];
    let claim = &pod["volumes"][0]["persistentVolumeClaim"];
    assert_eq!(
        (&claim["claimName"], &claim["readOnly"]),
        (&json!("models"), &json!(true))
    );
    let owner = &job["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], world.ring()["metadata"]["uid"], "it goes with its Ring");
    world
        .resolved("Unknown/Pending: Job smollm2-reader reads the model's prefix off its volume")
        .await;
    assert_eq!(world.api.names("deployments"), [] as [String; 0]);

    world.printed(&profile());
    eventually("the last child", || world.api.names("deployments").len() == 3).await;
    eventually("the model", || {
        world.condition("ModelResolved").as_deref() == Some("True/Resolved")
    })
    .await;
    assert_eq!(
        world.api.names("jobs"),
        [] as [String; 0],
        "what has been read needs no Job"
    );
    let visits = world.visits();
    world.touch();
    eventually("a visit", || world.visits() > visits).await;
    assert_eq!((world.asked(MADE), world.asked(REMOVED)), (1, 1), "it is read once");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_what_keeps_the_job_waiting_is_told_in_the_schedulers_words() {
    let world = World::reading().await;
    let message = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.";
    world.pod(&json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    ]}));
    world
        .resolved(&format!(
            "Unknown/Pending: Job smollm2-reader reads the model's prefix off its volume: {message}"
        ))
        .await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_not_there_is_told_and_the_model_is_read_once_it_is() {
    let world = World::reading().await;
    let message = "0/3 nodes are available: persistentvolumeclaim \"models\" not found.";
    world.pod(&json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    ]}));
    let said = format!("the model's volume is not there: make the PersistentVolumeClaim models ({message})");
    world.resolved(&format!("False/SourceUnreachable: {said}")).await;
    assert_eq!(world.said("Ready"), Some(format!("False/SourceUnreachable: {said}")));
    world.pod(&json!({"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}));
    world
        .resolved("Unknown/Pending: Job smollm2-reader reads the model's prefix off its volume")
        .await;
    world.printed(&profile());
    eventually("the last child", || world.api.names("deployments").len() == 3).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_failed_is_told_in_its_own_words_and_made_anew_when_it_is_gone() {
    let world = World::reading().await;
    let ended = json!({"terminated": {
        "exitCode": 1, "reason": "Error", "message": "2026-11-30T12:00:00Z ERROR /model/a.gguf is not there\n"
    }});
    world.pod(&json!({"phase": "Failed", "containerStatuses": [{
        "name": "reader", "image": "registry.example/kvasir-stage:1", "imageID": "", "ready": false,
        "restartCount": 0, "state": ended, "lastState": {},
    }]}));
    world.over("Failed");
    let said = "Job smollm2-reader can't read the model off its volume: container reader: /model/a.gguf is not there";
    world.resolved(&format!("False/SourceUnreachable: {said}")).await;
    assert_eq!(world.said("Ready"), Some(format!("False/SourceUnreachable: {said}")));
    assert_eq!(world.api.names("deployments"), [] as [String; 0]);
    assert_eq!(world.asked(REMOVED), 0, "whoever looks for the cause finds it");

    // its time is over, and the volume was filled meanwhile
    world.api.delete("pods", "models", POD);
    world.api.delete("jobs", "models", JOB);
    world.job(2).await;
    world.printed(&profile());
    eventually("the last child", || world.api.names("deployments").len() == 3).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_prints_no_profile_is_told_and_taken_away() {
    let world = World::reading().await;
    world.printed("hello\n");
    world
        .resolved(
            "False/UnsupportedFormat: Job smollm2-reader ended without a profile: is the image of the stages that of \
             this operator?",
        )
        .await;
    assert_eq!(world.asked(REMOVED), 1);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_somebody_elses_is_left_alone_and_named() {
    let world = World::without_model().await;
    let job = json!({"metadata": {"name": JOB}});
    world.api.put("jobs", "models", &job);
    world.apply(&on_volume());
    world
        .resolved("False/NameInUse: Job smollm2-reader is there and not this Ring's: rename one of them")
        .await;
    assert_eq!((world.asked(MADE), world.asked(REMOVED)), (0, 0));
    world.end().await;
}
