//! A small API server in memory: objects, server-side apply, status, labels, watches, finalizers, owners, logs. What it was
//! asked to change is counted.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Json, Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use k8s_openapi::jiff::Timestamp;
use kube::{Client, Config};
use serde_json::{Map, Value, json};
use tokio::{net::TcpListener, sync::watch};

/// Plural, namespace, name.
type Key = (String, String, String);

#[derive(Default)]
struct Objects {
    all: BTreeMap<Key, Value>,
    version: u64,
    /// plural, resource version, event
    log: Vec<(String, u64, Value)>,
    writes: Vec<String>,
    /// logs of pods, by namespace and name
    logs: BTreeMap<(String, String), String>,
    /// a namespace that nothing can be made in any more
    terminating: Option<String>,
    /// how requests of a method and a plural are refused: code and message
    refusals: BTreeMap<(String, String), (u16, String)>,
    /// method and object of each
    events: Vec<(String, Value)>,
}

pub(crate) struct ApiServer {
    objects: Mutex<Objects>,
    grown: watch::Sender<usize>,
    /// what nothing is written of for now
    held: watch::Sender<Option<String>>,
    /// requests that wait for it
    waiting: AtomicUsize,
}

/// What a path names.
struct Target {
    plural: String,
    namespace: String,
    name: Option<String>,
    status: bool,
    log: bool,
}

impl ApiServer {
    pub(crate) async fn start() -> (Arc<ApiServer>, Client) {
        let (server, url) = ApiServer::serve().await;
        let client = Client::try_from(Config::new(url.parse().unwrap())).unwrap();
        (server, client)
    }

    /// Its address besides.
    pub(crate) async fn serve() -> (Arc<ApiServer>, String) {
        let server = Arc::new(ApiServer {
            objects: Mutex::default(),
            grown: watch::Sender::new(0),
            held: watch::Sender::new(None),
            waiting: AtomicUsize::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (server, url)
    }

    pub(crate) fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let objects = self.objects.lock().unwrap();
        objects.all.get(&key(plural, namespace, name)).cloned()
    }

    pub(crate) fn names(&self, plural: &str) -> Vec<String> {
        let objects = self.objects.lock().unwrap();
        let of = objects.all.keys().filter(|(of, ..)| of == plural);
        of.map(|(.., name)| name.clone()).collect()
    }

    /// Puts an object there as a user or the kubelet would, uncounted.
    pub(crate) fn put(&self, plural: &str, namespace: &str, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let mut objects = self.objects.lock().unwrap();
        let place = key(plural, namespace, &name);
        let before = objects
            .all
            .get(&place)
            .cloned()
            .unwrap_or_else(|| fresh(namespace, &name));
        let mut after = before;
        merge(&mut after, object);
        objects.store(place, after);
        self.grown.send_replace(objects.log.len());
    }

    /// Deletes an object as a user would.
    pub(crate) fn delete(&self, plural: &str, namespace: &str, name: &str) {
        let mut objects = self.objects.lock().unwrap();
        objects.delete(key(plural, namespace, name));
        self.grown.send_replace(objects.log.len());
    }

    /// What a pod has printed.
    pub(crate) fn log(&self, namespace: &str, pod: &str, text: &str) {
        let place = (namespace.to_owned(), pod.to_owned());
        self.objects.lock().unwrap().logs.insert(place, text.to_owned());
    }

    /// From now on nothing can be made in the namespace.
    pub(crate) fn terminate(&self, namespace: &str) {
        self.objects.lock().unwrap().terminating = Some(namespace.to_owned());
    }

    /// Requests of this method are refused from now on, in these words: `PATCH`, `deployments`.
    pub(crate) fn refuse(&self, method: &str, plural: &str, code: u16, message: &str) {
        let mut objects = self.objects.lock().unwrap();
        let of = (method.to_owned(), plural.to_owned());
        objects.refusals.insert(of, (code, message.to_owned()));
    }

    /// Nothing is refused any more.
    pub(crate) fn refuse_nothing(&self) {
        self.objects.lock().unwrap().refusals.clear();
    }

    /// Whoever writes such an object waits from now on; none lets all go on.
    pub(crate) fn hold(&self, plural: Option<&str>) {
        self.held.send_replace(plural.map(str::to_owned));
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Events that were told, with the method: `POST` makes one.
    pub(crate) fn events(&self) -> Vec<(String, Value)> {
        self.objects.lock().unwrap().events.clone()
    }

    /// What was asked to be changed, in order; Leases are left out.
    pub(crate) fn writes(&self) -> Vec<String> {
        let objects = self.objects.lock().unwrap();
        let writes = objects.writes.iter().filter(|write| !write.contains(" leases/"));
        writes.cloned().collect()
    }
}

impl Objects {
    fn store(&mut self, place: Key, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let is_new = !self.all.contains_key(&place);
        let over = object["metadata"]["deletionTimestamp"].is_string()
            && object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        let event = match (over, is_new) {
            (true, _) => "DELETED",
            (false, true) => "ADDED",
            (false, false) => "MODIFIED",
        };
        self.log
            .push((place.0.clone(), self.version, json!({"type": event, "object": object})));
        if !over {
            self.all.insert(place, object);
            return;
        }
        self.all.remove(&place);
        let owner = object["metadata"]["uid"].clone();
        let owned = |object: &Value| {
            let owners = object["metadata"]["ownerReferences"].as_array();
            owners.into_iter().flatten().any(|reference| reference["uid"] == owner)
        };
        let orphans: Vec<Key> = self
            .all
            .iter()
            .filter(|(_, object)| owned(object))
            .map(|(place, _)| place.clone())
            .collect();
        for orphan in orphans {
            self.delete(orphan);
        }
    }

    fn delete(&mut self, place: Key) {
        if let Some(mut object) = self.all.get(&place).cloned() {
            object["metadata"]["deletionTimestamp"] = json!(crate::world::now().to_string());
            self.store(place, object);
        }
    }

    fn list(&self, target: &Target, selector: &str) -> Value {
        let fits = |object: &Value| {
            let mut pairs = selector.split(',').filter_map(|pair| pair.split_once('='));
            pairs.all(|(key, value)| object["metadata"]["labels"][key] == value)
        };
        let items = self.all.iter().filter(|((plural, namespace, _), object)| {
            *plural == target.plural && (target.namespace.is_empty() || *namespace == target.namespace) && fits(object)
        });
        json!({
            "apiVersion": "v1", "kind": "List",
            "metadata": {"resourceVersion": self.version.to_string()},
            "items": items.map(|(_, object)| object.clone()).collect::<Vec<_>>(),
        })
    }
}

async fn answer(State(server): State<Arc<ApiServer>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let query: BTreeMap<String, String> = parts
        .uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (key.to_owned(), unescaped(value)))
        .collect();
    if parts.uri.path() == "/version" {
        let version = json!({
            "major": "1", "minor": "37", "gitVersion": "v1.37.0", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
        });
        return Json(version).into_response();
    }
    let Some(target) = target(parts.uri.path()) else {
        return refused(StatusCode::NOT_FOUND, "NotFound", &[]);
    };
    let of = |name: &str| query.get(name).cloned().unwrap_or_default();
    if parts.method == Method::GET && of("watch") == "true" {
        return watch_from(server, target.plural, of("resourceVersion").parse().unwrap_or(0));
    }
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    if target.plural == "events" {
        let mut objects = server.objects.lock().unwrap();
        objects.events.push((parts.method.to_string(), body.clone()));
        return Json(body).into_response();
    }
    if parts.method != Method::GET && *server.held.borrow() == Some(target.plural.clone()) {
        server.waiting.fetch_add(1, Ordering::SeqCst);
        let _ = server.held.subscribe().wait_for(Option::is_none).await;
        server.waiting.fetch_sub(1, Ordering::SeqCst);
    }
    let mut objects = server.objects.lock().unwrap();
    let asked = (parts.method.to_string(), target.plural.clone());
    if let Some((code, message)) = objects.refusals.get(&asked) {
        return failure(StatusCode::from_u16(*code).unwrap(), "Refused", message, &[]);
    }
    if parts.method == Method::GET {
        return match &target.name {
            Some(name) if target.log => {
                let place = (target.namespace.clone(), name.clone());
                let log = objects.logs.get(&place).cloned().unwrap_or_default();
                let longest = of("limitBytes").parse().unwrap_or(usize::MAX);
                log[..log.len().min(longest)].to_owned().into_response()
            }
            None => Json(objects.list(&target, &of("labelSelector"))).into_response(),
            Some(name) => match objects.all.get(&key(&target.plural, &target.namespace, name)) {
                Some(object) => Json(object.clone()).into_response(),
                None => refused(StatusCode::NOT_FOUND, "NotFound", &[]),
            },
        };
    }
    let name = target
        .name
        .clone()
        .or_else(|| body["metadata"]["name"].as_str().map(str::to_owned))
        .unwrap();
    objects
        .writes
        .push(format!("{} {}/{name}", parts.method, target.plural));
    let place = key(&target.plural, &target.namespace, &name);
    let answer = changed(&mut objects, &parts.method, &parts.headers, &target, place, &body);
    let length = objects.log.len();
    drop(objects);
    server.grown.send_replace(length);
    answer
}

fn changed(
    objects: &mut Objects,
    method: &Method,
    headers: &HeaderMap,
    target: &Target,
    place: Key,
    body: &Value,
) -> Response {
    let before = objects.all.get(&place).cloned();
    if before.is_none() && objects.terminating.as_deref() == Some(target.namespace.as_str()) {
        return refused(StatusCode::FORBIDDEN, "Forbidden", &["NamespaceTerminating"]);
    }
    let kind = headers
        .get(header::CONTENT_TYPE)
        .map(|kind| kind.to_str().unwrap().to_owned());
    let is_merge = kind.as_deref() == Some("application/merge-patch+json");
    let after = match (method, before) {
        (&Method::POST, None) => {
            let mut object = fresh(&place.1, &place.2);
            merge(&mut object, body);
            object
        }
        (&Method::POST, Some(_)) => return refused(StatusCode::CONFLICT, "AlreadyExists", &[]),
        (&Method::DELETE, Some(object)) => {
            objects.delete(place);
            return Json(object).into_response();
        }
        (&Method::PATCH, None) if is_merge || target.status => return refused(StatusCode::NOT_FOUND, "NotFound", &[]),
        (&Method::PATCH, before) => {
            let mut object = before.unwrap_or_else(|| fresh(&place.1, &place.2));
            let read = &body["metadata"]["resourceVersion"];
            if read.is_string() && *read != object["metadata"]["resourceVersion"] {
                return refused(StatusCode::CONFLICT, "Conflict", &[]);
            }
            if target.status {
                let mut status = body["status"].clone();
                let known = status_fields(objects);
                let fields = status.as_object_mut().unwrap();
                let count = fields.len();
                fields.retain(|field, _| known.as_ref().is_none_or(|known| known.contains(field)));
                if fields.len() < count && !is_merge {
                    let message = "failed to create typed patch object: field not declared in schema";
                    return failure(StatusCode::INTERNAL_SERVER_ERROR, "", message, &[]);
                }
                object["status"] = status;
            } else {
                merge(&mut object, body);
            }
            object
        }
        _ => return refused(StatusCode::NOT_FOUND, "NotFound", &[]),
    };
    objects.store(place, after.clone());
    Json(after).into_response()
}

/// Fields of a Ring's status by the definition that is there.
fn status_fields(objects: &Objects) -> Option<Vec<String>> {
    let definition = objects
        .all
        .get(&key("customresourcedefinitions", "", "rings.kvasir.dev"))?;
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let fields = schema["properties"]["status"]["properties"].as_object()?;
    Some(fields.keys().cloned().collect())
}

fn watch_from(server: Arc<ApiServer>, plural: String, from: u64) -> Response {
    let grown = server.grown.subscribe();
    let events = futures::stream::unfold((server, grown, 0), move |(server, mut grown, mut at)| {
        let plural = plural.clone();
        async move {
            loop {
                grown.borrow_and_update();
                let next = {
                    let objects = server.objects.lock().unwrap();
                    let mut log = objects.log.iter().enumerate().skip(at);
                    let next = log.find(|(_, (of, version, _))| *of == plural && *version > from);
                    let found = next.map(|(index, (.., event))| (index + 1, event.to_string()));
                    at = objects.log.len();
                    found
                };
                if let Some((next, event)) = next {
                    return Some((Ok::<_, std::io::Error>(event + "\n"), (server, grown, next)));
                }
                grown.changed().await.ok()?;
            }
        }
    });
    Body::from_stream(events).into_response()
}

fn target(path: &str) -> Option<Target> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (["api", _, rest @ ..] | ["apis", _, _, rest @ ..]) = parts.as_slice() else {
        return None;
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] => (*namespace, rest),
        rest => ("", rest),
    };
    Some(Target {
        plural: (*rest.first()?).to_owned(),
        namespace: namespace.to_owned(),
        name: rest.get(1).map(|name| (*name).to_owned()),
        status: rest.get(2) == Some(&"status"),
        log: rest.get(2) == Some(&"log"),
    })
}

fn fresh(namespace: &str, name: &str) -> Value {
    json!({"metadata": {
        "name": name, "namespace": namespace, "uid": format!("uid-{namespace}-{name}"), "generation": 1,
        "creationTimestamp": Timestamp::now().to_string(),
    }})
}

fn key(plural: &str, namespace: &str, name: &str) -> Key {
    (plural.to_owned(), namespace.to_owned(), name.to_owned())
}

/// What is null in the patch goes, lists are replaced.
fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let members = object.as_object_mut().unwrap();
    for (name, value) in patch {
        if value.is_null() {
            members.remove(name);
        } else {
            merge(members.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

fn refused(code: StatusCode, reason: &str, causes: &[&str]) -> Response {
    failure(code, reason, reason, causes)
}

fn failure(code: StatusCode, reason: &str, message: &str, causes: &[&str]) -> Response {
    let causes: Vec<Value> = causes.iter().map(|cause| json!({"reason": cause})).collect();
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code.as_u16(), "reason": reason,
        "message": message, "details": {"causes": causes},
    });
    (code, Json(status)).into_response()
}

fn unescaped(text: &str) -> String {
    text.replace("%2F", "/").replace("%3D", "=").replace("%2C", ",")
}
