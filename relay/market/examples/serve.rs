//! A market and nothing else, for tests that start and kill it. It listens on a free port of the loopback and says its
//! address on standard output. Its store is `DATABASE_URL`, else the file `MARKET_FILE`.

use std::{env, error::Error, io::Write as _, path::Path};

use kvasir_market::{Admission, Limits, Market, Store, router};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = Limits::default();
    let store = match env::var("DATABASE_URL") {
        Ok(url) => Store::postgres(&url.into(), limits).await?,
        Err(_) => Store::file(Path::new(&env::var("MARKET_FILE")?), limits).await?,
    };
    let market = Market::new(store, Admission::Anyone).await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    writeln!(std::io::stdout(), "http://{}", listener.local_addr()?)?;
    axum::serve(listener, router(market)).await?;
    Ok(())
}
