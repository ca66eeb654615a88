//! The OpenAI-compatible API of rank 0: chat and text completions, models, health and metrics.
//!
//! A request goes through `parameters` (checked by name), `messages` and `template` (to a prompt), the [`Ring`], and
//! `answer` (tokens to text: `detokenize`, `stop`, `tools`), and leaves whole or as a `stream`. The pure parts know no
//! HTTP and no ring.
//!
//! Stated choices where OpenAI's own documents leave room: text parts of a message are joined by a line feed;
//! `stream_options` without `stream` is a 400; `max_tokens` below one is a 400; a `model` that is left out means the
//! one that is served; a cap beyond the context is no error, the answer ends with `length`.

// Names of products are not code.
#![allow(clippy::doc_markdown)]

use axum::extract::{DefaultBodyLimit, OriginalUri};
use axum::http::{Method, header};
use axum::middleware;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use prometheus_client::registry::Registry;
use secrecy::SecretString;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use self::answer::Answer;
use self::connections::HEAD_WITHIN;
use self::errors::ApiError;
use self::fields::BodyWithin;
use self::generation::{Generation, Order};
use self::health::Pulse;
use self::metrics::Metrics;
use self::parameters::Parameters;
use self::reply::{Delivery, Envelope, Shape};
use self::template::{CHATML, ChatTemplate, Conversation, TemplateError};
use self::tokenizer::tokenize_prompt;
use self::tools::Tools;
use crate::ring::handle::{Generate, Ring};

pub use self::tokenizer::Tokenizer;

mod access;
mod answer;
mod auth;
mod chat;
mod clock;
mod completions;
mod connections;
mod detokenize;
mod errors;
#[cfg(test)]
mod fake;
mod fields;
mod generation;
mod health;
mod messages;
mod metrics;
mod models;
mod parameters;
mod reply;
mod stop;
mod stream;
mod template;
#[cfg(test)]
mod tests;
mod tokenizer;
mod tools;

/// Which web pages may call the API from a browser.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cors {
    /// Any page if API keys are set; otherwise only pages that this machine serves itself, since any page that its
    /// user visits could call an unguarded API.
    #[default]
    Guarded,
    /// Any page.
    Any,
    /// Pages of these origins (`https://example.org`).
    Origins(Vec<String>),
    /// None.
    Off,
}

impl FromStr for Cors {
    type Err = String;

    /// `guarded`, `any`, `off`, or origins separated by commas.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "guarded" => return Ok(Cors::Guarded),
            "any" => return Ok(Cors::Any),
            "off" => return Ok(Cors::Off),
            _ => {}
        }
        let origins: Vec<String> = text.split(',').map(|origin| origin.trim().to_owned()).collect();
        match origins.iter().find(|origin| !is_origin(origin)) {
            None => Ok(Cors::Origins(origins)),
            Some(wrong) => Err(format!(
                "{wrong:?} is none of guarded, any, off and no origin such as https://example.org"
            )),
        }
    }
}

/// Scheme, host and perhaps a port, as browsers write the header `Origin`.
fn is_origin(text: &str) -> bool {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._:[]".contains(&byte);
    host.is_some_and(|host| !host.is_empty() && host.bytes().all(plain))
}

/// The end of a server in two steps: it takes nothing new, and later it gives up what is still in progress.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    begun: CancellationToken,
    over: CancellationToken,
}

impl Shutdown {
    /// Begins when `begun` is cancelled.
    pub fn on(begun: CancellationToken) -> Shutdown {
        Shutdown {
            begun,
            over: CancellationToken::new(),
        }
    }
}

/// How the API behaves.
#[derive(Debug)]
pub struct ApiConfig {
    /// name under which the model is served
    pub model_name: String,
    /// instead of the model's own chat template
    pub chat_template: Option<String>,
    /// one of them must come as a Bearer token; with none, nobody is asked
    pub api_keys: Vec<SecretString>,
    /// tokens of an answer whose request names no cap; the context bounds it too
    pub default_max_tokens: u32,
    /// pages that may call from a browser
    pub cors: Cors,
    /// longest silence of a stream: a comment goes out while a prompt is computed
    pub keep_alive: Duration,
    /// how long a client may take nothing of its stream before its answer is given up
    pub stalled_after: Duration,
    /// bytes of a request's body at most
    pub max_body_bytes: usize,
    /// time for a client to send its body
    pub body_within: Duration,
    /// answers that stand still for this long in a ring that claims to be ready turn `/healthz` red
    pub wedged_after: Duration,
    /// what `/metrics` shows beside the API's own numbers
    pub registry: Registry,
    /// how the server ends; [`serve`] must be given the same
    pub shutdown: Shutdown,
}

impl ApiConfig {
    /// Defaults for a model served as `model_name`, without keys.
    pub fn new(model_name: impl Into<String>) -> ApiConfig {
        ApiConfig {
            model_name: model_name.into(),
            chat_template: None,
            api_keys: Vec::new(),
            default_max_tokens: 4096,
            cors: Cors::default(),
            keep_alive: Duration::from_secs(15),
            stalled_after: Duration::from_secs(60),
            // A million tokens as JSON numbers are 8 MB.
            max_body_bytes: 16 << 20,
            body_within: BodyWithin::default().0,
            // A chunk of a prompt can take minutes on a ring of small devices.
            wedged_after: Duration::from_secs(300),
            registry: Registry::default(),
            shutdown: Shutdown::default(),
        }
    }
}

/// What handlers share.
struct Api {
    ring: Arc<dyn Ring>,
    tokenizer: Arc<dyn Tokenizer>,
    template: Result<ChatTemplate, TemplateError>,
    end_tokens: Vec<i32>,
    /// bytes of the longest token
    longest_token: usize,
    /// prompts that are rendered and tokenised at once: the rest of the processor is the engine's
    preparing: Arc<Semaphore>,
    shutdown: Shutdown,
    model_name: String,
    default_max_tokens: u32,
    keep_alive: Duration,
    stalled_after: Duration,
    wedged_after: Duration,
    /// seconds since 1970
    started: u64,
    registry: Registry,
    metrics: Metrics,
    pulse: Pulse,
}

/// A request that was understood.
struct Prepared {
    /// the field that the prompt came from
    param: &'static str,
    prompt: Vec<i32>,
    parameters: Parameters,
    tools: Option<Tools>,
}

/// The API's routes.
pub fn router(ring: Arc<dyn Ring>, tokenizer: Arc<dyn Tokenizer>, mut config: ApiConfig) -> Router {
    let metrics = Metrics::register(&mut config.registry);
    let cors = cors(&config);
    let keys: Arc<[_]> = config.api_keys.into();
    let api = Arc::new(Api {
        template: compile_template(&*tokenizer, config.chat_template),
        end_tokens: tokenizer.end_tokens(),
        longest_token: tokenizer.longest_token(),
        preparing: Arc::new(Semaphore::new(prompts_at_once())),
        shutdown: config.shutdown,
        ring,
        tokenizer,
        model_name: config.model_name,
        default_max_tokens: config.default_max_tokens,
        keep_alive: config.keep_alive,
        stalled_after: config.stalled_after,
        wedged_after: config.wedged_after,
        started: clock::unix_seconds(),
        registry: config.registry,
        metrics,
        pulse: Pulse::new(),
    });
    let guarded = Router::new()
        .route("/chat/completions", post(chat::create))
        .route("/completions", post(completions::create))
        .route("/models", get(models::list))
        .route("/models/{*id}", get(models::retrieve))
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(config.max_body_bytes))
        .layer(Extension(BodyWithin(config.body_within)))
        .layer(middleware::from_fn_with_state(keys, auth::require_key));
    Router::new()
        .nest("/v1", guarded)
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(api.clone(), access::record))
        // Outermost: a preflight needs no key, and every answer, also a 401, says who may read it.
        .layer(cors)
        .with_state(api)
}

/// Why chats can't be had with a model of this chat template, if so: it can't be read, or makes nothing of a greeting.
pub fn template_problem(template: &str) -> Option<String> {
    let greeting = Conversation {
        messages: vec![serde_json::json!({"role": "user", "content": "Hello"})],
        ..Conversation::default()
    };
    let rendered =
        ChatTemplate::compile(template, String::new(), String::new()).and_then(|template| template.render(&greeting));
    match rendered {
        Ok(prompt) if prompt.trim().is_empty() => Some("the chat template makes an empty prompt".to_owned()),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    }
}

fn compile_template(tokenizer: &dyn Tokenizer, own: Option<String>) -> Result<ChatTemplate, TemplateError> {
    let source = own.or_else(|| tokenizer.chat_template()).unwrap_or_else(|| {
        tracing::warn!("the model has no chat template: ChatML is used, which it may not understand");
        CHATML.to_string()
    });
    let template = ChatTemplate::compile(&source, tokenizer.bos_token(), tokenizer.eos_token());
    if let Err(error) = &template {
        tracing::error!(%error, "chat completions are not available");
    }
    template
}

fn cors(config: &ApiConfig) -> CorsLayer {
    let origins = match &config.cors {
        Cors::Any => AllowOrigin::any(),
        Cors::Guarded if !config.api_keys.is_empty() => AllowOrigin::any(),
        Cors::Guarded => AllowOrigin::predicate(|origin, _| is_local(origin.as_bytes())),
        Cors::Origins(allowed) => {
            let allowed = allowed.clone();
            AllowOrigin::predicate(move |origin, _| {
                allowed.iter().any(|allowed| origin.as_bytes() == allowed.as_bytes())
            })
        }
        Cors::Off => AllowOrigin::list([]),
    };
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST])
        // A wildcard would not cover `Authorization`.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([header::RETRY_AFTER])
}

fn is_local(origin: &[u8]) -> bool {
    let host = std::str::from_utf8(origin)
        .ok()
        .and_then(|origin| origin.split_once("://"))
        .map(|(_, host)| host);
    let Some(host) = host else { return false };
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|local| {
        host.strip_prefix(local)
            .is_some_and(|port| port.is_empty() || port.starts_with(':'))
    })
}

/// Half of the processors, one at least.
fn prompts_at_once() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get().div_ceil(2))
}

async fn no_route(method: Method, OriginalUri(uri): OriginalUri) -> ApiError {
    ApiError::no_route(method.as_str(), uri.path())
}

async fn wrong_method(method: Method, OriginalUri(uri): OriginalUri) -> ApiError {
    ApiError::wrong_method(method.as_str(), uri.path())
}

impl Api {
    /// Only the one model is served; a request that names none means it.
    fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            Some(asked) if asked != self.model_name => Err(ApiError::model_not_found(asked, &self.model_name)),
            _ => Ok(()),
        }
    }

    /// Runs `prepare` where a long prompt's rendering and tokenising hold up no other request. Few run at once: a client
    /// that leaves while it waits for its turn costs nothing.
    async fn prepare(
        self: Arc<Self>,
        prepare: impl FnOnce(&Api) -> Result<Prepared, ApiError> + Send + 'static,
    ) -> Result<Prepared, ApiError> {
        let failed = || ApiError::internal("internal_error", "the request could not be prepared");
        let turn = self.preparing.clone().acquire_owned().await.map_err(|_| failed())?;
        let prepared = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            prepare(&self)
        });
        prepared.await.unwrap_or_else(|_| Err(failed()))
    }

    /// Tokens of a text that is the prompt. One that can't fit the context is refused by its length: tokenising takes
    /// seconds for megabytes.
    fn tokenize(&self, param: &str, text: &str) -> Result<Vec<i32>, ApiError> {
        let context_length = self.ring.limits().context_length;
        if text.len() > self.longest_token.saturating_mul(context_length as usize) {
            return Err(ApiError::text_too_long(param, text.len(), context_length));
        }
        Ok(tokenize_prompt(&*self.tokenizer, text))
    }

    /// Has the ring answer and sends what comes in `shape`.
    async fn answer<S: Shape>(
        self: Arc<Self>,
        id: String,
        arrived: Instant,
        prepared: Prepared,
        shape: S,
    ) -> Result<Response, ApiError> {
        let Prepared {
            param,
            prompt,
            mut parameters,
            tools,
        } = prepared;
        let max_tokens = self
            .room(param, &prompt)?
            .min(parameters.max_tokens.unwrap_or(self.default_max_tokens));
        let with_logprobs = parameters.sampling.top_logprobs.is_some();
        let stops = std::mem::take(&mut parameters.stops);
        let answer = Answer::new(self.tokenizer.clone(), stops, tools.as_ref(), with_logprobs);
        let restriction = parameters.restriction();
        let stop_tokens = if parameters.ignore_eos {
            Vec::new()
        } else {
            self.end_tokens.clone()
        };
        let generate = Generate {
            prompt,
            max_tokens,
            sampling: parameters.sampling,
            stop_tokens,
        };
        let envelope = Envelope::new(id.clone(), &self.model_name);
        let order = Order {
            id,
            arrived,
            restriction,
            generate,
        };
        let delivery = Delivery {
            stream: parameters.stream,
            include_usage: parameters.include_usage,
            keep_alive: self.keep_alive,
            stalled_after: self.stalled_after,
        };
        let generation = Generation::submit(self, order, answer).await?;
        reply::send(generation, envelope, shape, delivery).await
    }

    /// Tokens that fit after `prompt`, at least one.
    fn room(&self, param: &str, prompt: &[i32]) -> Result<u32, ApiError> {
        if prompt.is_empty() {
            return Err(ApiError::invalid(param, format!("'{param}' comes to no tokens at all")));
        }
        let context_length = self.ring.limits().context_length;
        match u32::try_from(prompt.len())
            .ok()
            .and_then(|prompt| context_length.checked_sub(prompt))
        {
            None | Some(0) => Err(ApiError::context_length(param, prompt.len(), context_length)),
            Some(room) => Ok(room),
        }
    }
}

/// Time for clients to take the news that their answers were given up.
const FAREWELL: Duration = Duration::from_secs(2);

/// Serves `router` until `shutdown` begins; then takes no new connection and lets answers in progress end, for `drain` at
/// most. Those that are left are given up, and their clients told so.
pub async fn serve(listener: TcpListener, router: Router, shutdown: Shutdown, drain: Duration) {
    serve_within(listener, router, shutdown, drain, HEAD_WITHIN).await;
}

async fn serve_within(
    listener: TcpListener,
    router: Router,
    shutdown: Shutdown,
    drain: Duration,
    head_within: Duration,
) {
    let ended_late = async {
        shutdown.begun.cancelled().await;
        tokio::time::sleep(drain).await;
        shutdown.over.cancel();
        tokio::time::sleep(FAREWELL).await;
    };
    tokio::select! {
        () = connections::serve(listener, router, head_within, shutdown.begun.clone()) => {}
        () = ended_late => tracing::warn!("clients did not take the end of their answers in time"),
    }
}
