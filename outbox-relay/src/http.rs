//! One port for health, metrics and the API.

use std::future::Future;
use std::sync::Arc;

use anyhow::Context as _;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::config::{Http, Secret};
use crate::supervisor::Supervisor;

struct Shared {
    supervisor: Supervisor,
    metrics: PrometheusHandle,
    token: Option<Secret>,
}

/// Listens, and returns what then serves. The port is taken when this returns.
pub(crate) async fn listen(
    http: &Http,
    supervisor: Supervisor,
    metrics: PrometheusHandle,
) -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let listener = TcpListener::bind(http.listen)
        .await
        .with_context(|| format!("http.listen: {} cannot be listened at", http.listen))?;
    let address = listener.local_addr()?;
    tracing::info!(%address, "http listens");
    let shared = Arc::new(Shared { supervisor, metrics, token: http.token.clone() });
    let api = Router::new()
        .route("/status", get(status))
        .route("/pipelines", get(pipelines))
        .route("/pipelines/{name}", get(pipeline))
        .fallback(nowhere)
        .layer(middleware::from_fn_with_state(shared.clone(), with_token));
    let router = Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(render))
        .nest("/api/v1", api)
        .with_state(shared);
    Ok(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "http has ended");
        }
    })
}

/// Ready is a daemon whose pipelines are all well; the others are named, each with its trouble in one word. Reasons may name
/// servers and tables: the API has them.
async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    let statuses = shared.supervisor.statuses();
    let troubles: serde_json::Map<String, Value> = statuses
        .iter()
        .filter_map(|status| Some((status.name.clone(), json!(status.trouble?))))
        .collect();
    let code = match troubles.is_empty() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    (code, Json(json!({ "ready": troubles.is_empty(), "troubles": troubles }))).into_response()
}

async fn render(State(shared): State<Arc<Shared>>) -> Response {
    let text = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (text, shared.metrics.render()).into_response()
}

async fn status(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let statuses = shared.supervisor.statuses();
    let well = statuses.iter().filter(|status| status.trouble.is_none()).count();
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pipelines": statuses.len(),
        "well": well,
    }))
}

async fn pipelines(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(json!({ "pipelines": shared.supervisor.statuses() }))
}

async fn pipeline(State(shared): State<Arc<Shared>>, Path(name): Path<String>) -> Response {
    match shared.supervisor.statuses().into_iter().find(|status| status.name == name) {
        Some(status) => Json(status).into_response(),
        None => error(StatusCode::NOT_FOUND, "there is no pipeline of this name"),
    }
}

async fn nowhere() -> Response {
    error(StatusCode::NOT_FOUND, "there is nothing here")
}

/// Lets a request through that has the token, or any while there is none.
async fn with_token(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).map(header::HeaderValue::as_bytes);
    let given = given.and_then(|value| value.strip_prefix(b"Bearer "));
    let may = match &shared.token {
        Some(token) => given.is_some_and(|given| is_same(given, token.reveal().as_bytes())),
        None => true,
    };
    match may {
        true => next.run(request).await,
        false => {
            error(StatusCode::UNAUTHORIZED, "send the header Authorization: Bearer <http.token>")
        }
    }
}

/// Compares in a time that does not tell where the two begin to differ.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

fn error(code: StatusCode, reason: &str) -> Response {
    (code, Json(json!({ "error": reason }))).into_response()
}
