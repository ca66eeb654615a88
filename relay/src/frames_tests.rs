//! The decoder against tungstenite, and against frames made by hand.

use std::io::{self, Cursor, Read, Write};

use proptest::prelude::*;
use tokio_tungstenite::tungstenite::{
    Message,
    protocol::{Role, WebSocket},
};

use super::*;

const LIMIT: usize = 64 * 1024;

/// Reads from one end, and keeps what is written.
struct Ends {
    input: Cursor<Vec<u8>>,
    output: Vec<u8>,
}

impl Read for Ends {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.input.read(buf)
    }
}

impl Write for Ends {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.output.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a client puts on the wire for `messages`.
fn client(messages: &[Message]) -> Vec<u8> {
    let ends = Ends {
        input: Cursor::new(Vec::new()),
        output: Vec::new(),
    };
    let mut socket = WebSocket::from_raw_socket(ends, Role::Client, None);
    for message in messages {
        socket.send(message.clone()).unwrap();
    }
    socket.get_ref().output.clone()
}

/// The binary bytes that another client reads off `wire`.
fn read_by_a_client(wire: Vec<u8>) -> Vec<u8> {
    let ends = Ends {
        input: Cursor::new(wire),
        output: Vec::new(),
    };
    let mut socket = WebSocket::from_raw_socket(ends, Role::Client, None);
    let mut bytes = Vec::new();
    while let Ok(message) = socket.read() {
        match message {
            Message::Binary(part) => bytes.extend(part),
            other => panic!("{other:?}"),
        }
    }
    bytes
}

/// Passes `wire` on in chunks of the given sizes, over and over.
fn passed_on(decoder: &mut Decoder, wire: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut sizes = sizes.iter().copied().cycle();
    let mut rest = wire;
    let mut out = Vec::new();
    let mut buffer = vec![0; HEADROOM + MAX_CHUNK];
    let mut stretches = Vec::new();
    while !rest.is_empty() {
        let size = sizes.next().unwrap().clamp(1, rest.len().min(MAX_CHUNK));
        let (chunk, tail) = rest.split_at(size);
        buffer[HEADROOM..HEADROOM + size].copy_from_slice(chunk);
        decoder.forward(&mut buffer, HEADROOM..HEADROOM + size, &mut stretches);
        assert!(stretches.len() <= MAX_STRETCHES);
        for stretch in &stretches {
            out.extend_from_slice(&buffer[stretch.clone()]);
        }
        rest = tail;
    }
    out
}

/// A frame as a client sends it, masked.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        length @ 0..126 => bytes.push(MASKED | length as u8),
        length @ 126..65536 => {
            bytes.push(MASKED | 0x7E);
            bytes.extend((length as u16).to_be_bytes());
        }
        length => {
            bytes.push(MASKED | 127);
            bytes.extend((length as u64).to_be_bytes());
        }
    }
    let mask = [1, 2, 3, 250];
    bytes.extend(mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

fn fed(wire: &[u8]) -> Decoder {
    let mut decoder = Decoder::new(LIMIT);
    passed_on(&mut decoder, wire, &[MAX_CHUNK]);
    decoder
}

proptest! {
    #[test]
    fn what_a_client_sends_another_reads(
        lengths in prop::collection::vec(prop_oneof![0usize..300, 4_000usize..5_000, 60_000usize..=LIMIT], 1..6),
        sizes in prop::collection::vec(prop_oneof![1usize..20, 1usize..70_000], 1..8),
        pings in any::<bool>(),
    ) {
        let mut messages = Vec::new();
        let mut sent = Vec::new();
        for (number, length) in lengths.into_iter().enumerate() {
            let payload: Vec<u8> = (0..length).map(|at| (at * 7 + number) as u8).collect();
            sent.extend_from_slice(&payload);
            messages.push(Message::Binary(payload.into()));
            if pings {
                messages.push(Message::Ping(vec![number as u8; 40].into()));
                messages.push(Message::Pong(Vec::new().into()));
            }
        }
        let mut decoder = Decoder::new(LIMIT);
        let wire = passed_on(&mut decoder, &client(&messages), &sizes);
        prop_assert_eq!(decoder.ended(), None);
        prop_assert_eq!(decoder.take_ping().is_some(), pings);
        prop_assert_eq!(read_by_a_client(wire), sent);
    }

    #[test]
    fn no_bytes_make_it_panic_or_hold_more_than_a_control_frame(
        wire in prop::collection::vec(any::<u8>(), 0..2000),
        sizes in prop::collection::vec(1usize..50, 1..8),
    ) {
        let mut decoder = Decoder::new(LIMIT);
        passed_on(&mut decoder, &wire, &sizes);
        prop_assert!(decoder.held.len() <= CONTROL_HEADER + MAX_CONTROL + 50);
    }
}

#[test]
fn c3_a_message_above_the_limit_is_named_with_both_numbers() {
    let decoder = fed(&frame(FINAL | BINARY, &vec![0; LIMIT + 1])[..20]);
    let limit = LIMIT as u64;
    assert_eq!(
        decoder.ended(),
        Some(Ended::Broken(Close::TooLarge { size: limit + 1, limit }))
    );
}

#[test]
fn c3_fragments_count_together() {
    let half = vec![0; LIMIT / 2 + 1];
    let wire = [frame(BINARY, &half), frame(FINAL | CONTINUATION, &half)].concat();
    let limit = LIMIT as u64;
    assert_eq!(
        fed(&wire).ended(),
        Some(Ended::Broken(Close::TooLarge { size: limit + 2, limit }))
    );
    let fits = [frame(BINARY, &half[1..]), frame(FINAL | CONTINUATION, &half[1..])].concat();
    assert_eq!(fed(&[fits.clone(), fits].concat()).ended(), None);
}

#[test]
fn a_length_that_is_announced_costs_nothing() {
    let wire = [&[FINAL | BINARY, MASKED | 127][..], &u64::MAX.to_be_bytes(), &[0; 4]].concat();
    let decoder = fed(&wire);
    assert!(matches!(decoder.ended(), Some(Ended::Broken(Close::TooLarge { .. }))));
    assert!(decoder.held.capacity() < 1024);
}

#[test]
fn what_the_standard_forbids_is_malformed() {
    let unmasked = vec![FINAL | BINARY, 1, 7];
    let cases = [
        ("text", frame(FINAL | 0x1, b"hello")),
        ("unmasked", unmasked),
        ("reserved bits", frame(FINAL | 0x40 | BINARY, b"x")),
        ("unknown data", frame(FINAL | 0x3, b"x")),
        ("unknown control", frame(FINAL | 0xB, b"x")),
        ("fragmented ping", frame(PING, b"x")),
        ("long ping", frame(FINAL | PING, &[0; 126])),
        ("continuation of nothing", frame(FINAL | CONTINUATION, b"x")),
        (
            "message within a message",
            [frame(BINARY, b"x"), frame(FINAL | BINARY, b"y")].concat(),
        ),
    ];
    for (what, wire) in cases {
        assert_eq!(fed(&wire).ended(), Some(Ended::Broken(Close::Malformed)), "{what}");
    }
}

#[test]
fn a_ping_between_fragments_is_seen_and_nothing_is_lost() {
    let wire = [
        frame(BINARY, b"ab"),
        frame(FINAL | PING, b"beat"),
        frame(FINAL | CONTINUATION, b"cd"),
    ]
    .concat();
    for size in 1..wire.len() {
        let mut decoder = Decoder::new(LIMIT);
        let out = passed_on(&mut decoder, &wire, &[size]);
        assert_eq!(decoder.take_ping(), Some(b"beat".to_vec()), "{size}");
        assert_eq!(read_by_a_client(out), b"abcd", "{size}");
    }
}

#[test]
fn nothing_is_read_behind_a_close() {
    let wire = [frame(FINAL | CLOSE, &[3, 232]), frame(FINAL | BINARY, b"late")].concat();
    let mut decoder = Decoder::new(LIMIT);
    assert!(passed_on(&mut decoder, &wire, &[MAX_CHUNK]).is_empty());
    assert_eq!(decoder.ended(), Some(Ended::Closed));
}

#[test]
fn what_the_relay_says_itself_is_read_by_a_client() {
    let close = Close::Draining {
        after: std::time::Duration::from_millis(700),
    };
    let mut wire = Vec::new();
    put_ping(&mut wire);
    put_pong(b"beat", &mut wire);
    put_data(b"bytes", &mut wire);
    put_close(close, &mut wire);
    let ends = Ends {
        input: Cursor::new(wire),
        output: Vec::new(),
    };
    let mut socket = WebSocket::from_raw_socket(ends, Role::Client, None);
    assert_eq!(socket.read().unwrap(), Message::Ping(Vec::new().into()));
    assert_eq!(socket.read().unwrap(), Message::Pong(b"beat".to_vec().into()));
    assert_eq!(socket.read().unwrap(), Message::Binary(b"bytes".to_vec().into()));
    let Message::Close(Some(frame)) = socket.read().unwrap() else {
        panic!("no close")
    };
    assert_eq!(Close::parse(frame.code.into(), &frame.reason), Some(close));
}
