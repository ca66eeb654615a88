//! What the two containers are told, by environment: every flag of a stage has a variable, and secrets have only that.

use k8s_openapi::api::core::v1::{ConfigMapKeySelector, EnvVar, EnvVarSource, ObjectFieldSelector, SecretKeySelector};
use kvasir_api::{CacheType, SecretKeyRef, bytes};

use super::super::{Error, Slot, config_map, deployment, secret};
use super::parts::{KEY_DIR, PLAN_DIR, WINDOW_DIR};

pub(super) fn fetch(slot: &Slot<'_>) -> Result<Vec<EnvVar>, Error> {
    let source = serde_json::to_string(&slot.spec.source.in_pod()).map_err(|source| Error::Json {
        what: "a source",
        source,
    })?;
    let mut env = window(slot);
    env.push(plain("KVASIR_SOURCE", source));
    if let Some(credentials) = &slot.spec.ring.model.credentials_secret_ref {
        env.push(of_secret("KVASIR_SOURCE_TOKEN", credentials));
    }
    Ok(env)
}

pub(super) fn run(slot: &Slot<'_>) -> Vec<EnvVar> {
    let spec = slot.spec;
    let everywhere = |port: i32| format!("0.0.0.0:{port}");
    let mut env = window(slot);
    env.extend([
        plain("KVASIR_MARKET", spec.relay.clone()),
        plain("KVASIR_OWNER", slot.owner.public().to_string()),
        plain("KVASIR_KEY", format!("{KEY_DIR}/{}", secret::NODE_KEY)),
        plain("KVASIR_LISTEN", everywhere(deployment::EDGE_PORT)),
        plain("KVASIR_HEALTH", everywhere(deployment::HEALTH_PORT)),
        of_pod("POD_IP", "status.podIP"),
        plain("KVASIR_ADVERTISE", format!("$(POD_IP):{}", deployment::EDGE_PORT)),
        plain("KVASIR_NETWORK", spec.network.clone()),
        plain("KVASIR_CACHE_TYPE", cache_type(spec.ring.cache_type).to_owned()),
    ]);
    env.extend(threads(slot).map(|threads| plain("KVASIR_THREADS", threads.to_string())));
    if slot.is_first() {
        env.push(plain("KVASIR_API", everywhere(deployment::API_PORT)));
        if let Some(keys) = &spec.ring.endpoint.api_key_secret_ref {
            env.push(of_secret("KVASIR_API_KEYS", keys));
        }
        if config_map::chat_template(slot).is_some() {
            let path = format!("{PLAN_DIR}/{}", config_map::CHAT_TEMPLATE);
            env.push(plain("KVASIR_CHAT_TEMPLATE", path));
        }
    }
    env
}

/// Which window it is. The rank is not in the template: a new plan may give the window that stays another one.
fn window(slot: &Slot<'_>) -> Vec<EnvVar> {
    let rank = EnvVar {
        name: "KVASIR_RANK".to_owned(),
        value_from: Some(EnvVarSource {
            config_map_key_ref: Some(ConfigMapKeySelector {
                name: slot.name(),
                key: config_map::RANK.to_owned(),
                optional: None,
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    };
    vec![
        plain("KVASIR_PLAN", format!("{PLAN_DIR}/{}", config_map::PLAN)),
        rank,
        plain("KVASIR_DIR", WINDOW_DIR.to_owned()),
        plain("NO_COLOR", "1".to_owned()),
    ]
}

/// Threads that the stage may keep busy: as many as the pool gives it processors. Without a word of the pool the stage
/// takes one for each core that it sees.
fn threads(slot: &Slot<'_>) -> Option<u64> {
    let resources = slot.spec.pool(slot.pool)?.resources.as_ref()?;
    let lists = [&resources.limits, &resources.requests];
    let cpu = lists.into_iter().flatten().find_map(|list| list.get("cpu"))?;
    // rounded up to a whole one
    bytes(cpu).ok().filter(|threads| *threads <= 512)
}

fn cache_type(cache_type: CacheType) -> &'static str {
    match cache_type {
        CacheType::F16 => "F16",
        CacheType::Q8_0 => "Q8_0",
    }
}

fn plain(name: &str, value: String) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: Some(value),
        value_from: None,
    }
}

fn of_secret(name: &str, secret: &SecretKeyRef) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: secret.name.clone(),
                key: secret.key.clone(),
                optional: None,
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}

fn of_pod(name: &str, path: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: path.to_owned(),
                ..ObjectFieldSelector::default()
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}
