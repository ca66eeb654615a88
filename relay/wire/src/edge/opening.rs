//! From a bare stream to two ends that have proved who they are and agree on the ring.

use std::io::ErrorKind;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::{EdgeConfig, EdgeError};
use crate::{
    frame::{Frame, Hello},
    noise::{Binding, Handshake, HandshakeError, MESSAGE_BYTES, Opener, PREAMBLE_BYTES, Role, Sealer, TAG_BYTES},
    piece::{MAX_PIECE, MAX_PIECE_BYTES, Outgoing, PieceReader, PieceWriter},
};

/// Reads nothing past the peer's hello, so that the stream can be handed on.
pub(super) async fn shake_hands<S>(stream: &mut S, config: &EdgeConfig) -> Result<(Sealer, Opener), EdgeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let EdgeConfig {
        ring,
        epoch,
        edge,
        identity,
        ..
    } = config;
    let binding = Binding {
        ring: ring.clone(),
        epoch: *epoch,
        edge: *edge,
        identity: identity.clone(),
    };
    let mut handshake = Handshake::new(config.role, &binding, &config.own, &config.peer_noise_key)?;

    let mut first = binding.preamble().to_vec();
    if config.role == Role::Predecessor {
        handshake.write(&mut first)?;
    }
    write(stream, &first).await?;
    let mut preamble = [0; PREAMBLE_BYTES];
    read(stream, &mut preamble).await?;
    binding.check(&preamble)?;
    handshake.read(&read_message(stream, MESSAGE_BYTES).await?)?;
    let mut second = Vec::new();
    if config.role == Role::Successor {
        handshake.write(&mut second)?;
    }
    let (mut sealer, mut opener) = handshake.finish()?;

    let mut piece = Vec::new();
    let hello = Outgoing::new(&Frame::Hello(config.hello.clone()), &config.limits).map_err(EdgeError::Invalid)?;
    let mut pieces = PieceWriter::default();
    pieces.queue(hello);
    pieces.next_piece(MAX_PIECE_BYTES, &mut piece);
    sealer.seal(&piece, &mut second)?;
    write(stream, &second).await?;

    let message = read_message(stream, MAX_PIECE + TAG_BYTES).await?;
    opener.open(&message, &mut piece).map_err(|_| HandshakeError::Refused)?;
    match PieceReader::new(config.limits).feed(&piece) {
        Ok(Some(Frame::Hello(theirs))) => check_hello(&theirs, &config.hello, config.expect_rank)?,
        Ok(_) => return Err(HandshakeError::FirstFrame(None).into()),
        Err(error) => return Err(HandshakeError::FirstFrame(Some(error)).into()),
    }
    Ok((sealer, opener))
}

/// Checks a peer's hello against this side's and the rank that the manifest gives the peer. The ring does it again when
/// an edge says hello for a new epoch.
///
/// # Errors
/// [`HandshakeError::Hello`] names the field that differs.
pub fn check_hello(theirs: &Hello, ours: &Hello, expect_rank: u32) -> Result<(), HandshakeError> {
    let fields: [(&str, &dyn ToString, &dyn ToString); 6] = [
        ("ring", &theirs.ring, &ours.ring),
        ("epoch", &theirs.epoch, &ours.epoch),
        ("rank", &theirs.rank, &expect_rank),
        ("model identity", &theirs.identity, &ours.identity),
        ("embedding length", &theirs.embedding_length, &ours.embedding_length),
        (
            "boundary type",
            &format!("{:?}", theirs.boundary_type),
            &format!("{:?}", ours.boundary_type),
        ),
    ];
    for (what, theirs, ours) in fields {
        let (theirs, ours) = (theirs.to_string(), ours.to_string());
        if theirs != ours {
            return Err(HandshakeError::Hello { what, theirs, ours });
        }
    }
    Ok(())
}

async fn write<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> Result<(), EdgeError> {
    stream.write_all(bytes).await.map_err(hung_up)?;
    stream.flush().await.map_err(hung_up)
}

async fn read<S: AsyncRead + Unpin>(stream: &mut S, bytes: &mut [u8]) -> Result<(), EdgeError> {
    stream.read_exact(bytes).await.map(drop).map_err(hung_up)
}

async fn read_message<S: AsyncRead + Unpin>(stream: &mut S, most: usize) -> Result<Vec<u8>, EdgeError> {
    let mut length = [0; 2];
    read(stream, &mut length).await?;
    let length = usize::from(u16::from_le_bytes(length));
    if length > most {
        return Err(HandshakeError::NotAnEdge.into());
    }
    let mut message = vec![0; length];
    read(stream, &mut message).await?;
    Ok(message)
}

fn hung_up(error: std::io::Error) -> EdgeError {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => HandshakeError::HungUp.into(),
        _ => error.into(),
    }
}
