//! Edge tickets from the market.

use async_trait::async_trait;
use kvasir_market::client::RingClient;
use kvasir_market::types::{EdgeRole, TicketRequest};
use kvasir_process::chain;
use kvasir_wire::edge::LegError;

use crate::ring::relays::{EdgeTicket, Role, Tickets};

#[async_trait]
impl Tickets for RingClient {
    async fn ticket(&self, epoch: u64, edge: u32, role: Role) -> Result<EdgeTicket, LegError> {
        let role = match role {
            Role::Predecessor => EdgeRole::Predecessor,
            Role::Successor => EdgeRole::Successor,
        };
        let granted = RingClient::ticket(self, &TicketRequest { epoch, edge, role }).await;
        let granted = granted.map_err(|e| LegError::NoTicket {
            reason: e.reason().to_owned(),
            message: chain(&e),
            retryable: e.retryable(),
        })?;
        Ok(EdgeTicket {
            url: granted.url,
            ticket: granted.ticket.into(),
        })
    }
}
