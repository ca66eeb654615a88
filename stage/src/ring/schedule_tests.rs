//! Promises of the scheduler, over random requests, cancellations and orders of return.

use std::collections::HashMap;

use kvasir_wire::frame::{LapKind, Sampled, Sampling, Tokens};
use proptest::prelude::*;

use super::handle::{Event, Finish, Generate, RingError};
use super::schedule::{Action, Outgoing, ScheduleError, Scheduler, Shape};

const STOP: i32 = 2;

fn request(prompt: usize, max_tokens: u32) -> Generate {
    Generate {
        prompt: (0..prompt as i32).map(|i| 100 + i).collect(),
        max_tokens,
        sampling: Sampling::default(),
        stop_tokens: vec![STOP],
    }
}

fn token(sequence: u64, position: u32, token: i32) -> Sampled {
    Sampled {
        sequence,
        position,
        token,
        logprob: 0.0,
        top: vec![],
        logits: bytes::Bytes::new(),
        error: String::new(),
    }
}

/// Plays the ring: what the last rank would sample from a lap.
fn answer(lap: &Outgoing, prompts: &HashMap<u64, usize>, sample: impl Fn(u64, u32) -> i32) -> Tokens {
    let sampled = lap
        .spans
        .iter()
        .filter(|s| (s.position + s.count) as usize >= prompts[&s.sequence])
        .map(|s| {
            token(
                s.sequence,
                s.position + s.count,
                sample(s.sequence, s.position + s.count),
            )
        })
        .collect();
    Tokens {
        lap: lap.id,
        compute_us: 1,
        sampled,
    }
}

fn shape(max_laps: usize, max_lap_tokens: u32, sequences: usize) -> Shape {
    Shape {
        max_laps,
        max_lap_tokens,
        sequences,
        context_length: 64,
        queue: 100,
    }
}

fn drain(s: &mut Scheduler) -> Vec<Action> {
    std::iter::from_fn(|| s.poll()).collect()
}

#[test]
fn a_prompt_goes_in_chunks_and_answers_follow_one_by_one() {
    let mut s = Scheduler::new(shape(1, 4, 2));
    let id = s.submit(request(6, 2)).unwrap();
    let mut tokens_fed = vec![];
    let mut events = vec![];
    loop {
        let mut home = None;
        for action in drain(&mut s) {
            match action {
                Action::Lap(lap) => {
                    tokens_fed.push((lap.kind, lap.spans[0].position, lap.tokens.clone()));
                    home = Some(answer(&lap, &HashMap::from([(id, 6)]), |_, p| p as i32));
                }
                Action::Deliver { event, .. } => events.push(event),
                Action::Close { sequence } => assert_eq!(sequence, id),
                Action::Open(open) => assert_eq!(open.prompt.len(), 6),
            }
        }
        match home {
            Some(tokens) => s.home(&tokens).unwrap(),
            None => break,
        }
    }
    assert_eq!(
        tokens_fed,
        vec![
            (LapKind::Prefill, 0, vec![100, 101, 102, 103]),
            (LapKind::Prefill, 4, vec![104, 105]),
            (LapKind::Decode, 6, vec![6]),
        ]
    );
    let told: Vec<String> = events
        .iter()
        .map(|e| match e {
            Event::Prefilled { done, total } => format!("{done}/{total}"),
            Event::Token(t) => format!("token {} at {}", t.token, t.position),
            Event::Done(f) => format!("{f:?}"),
            Event::Failed(e) => e.to_string(),
        })
        .collect();
    assert_eq!(told, ["4/6", "6/6", "token 6 at 6", "token 7 at 7", "Length"]);
}

#[test]
fn running_answers_and_a_long_prompt_take_turns() {
    let mut s = Scheduler::new(shape(1, 4, 2));
    let a = s.submit(request(1, 50)).unwrap();
    let b = s.submit(request(40, 50)).unwrap();
    let prompts = HashMap::from([(a, 1), (b, 40)]);
    let mut kinds = vec![];
    for _ in 0..12 {
        for action in drain(&mut s) {
            if let Action::Lap(lap) = action {
                kinds.push(lap.kind);
                s.home(&answer(&lap, &prompts, |_, _| 7)).unwrap();
            }
        }
    }
    // The first two laps start both prompts; from then on an answer waits whenever a chunk does.
    let crowded = kinds[2..]
        .windows(2)
        .any(|pair| pair == [LapKind::Prefill, LapKind::Prefill]);
    assert!(!crowded, "two prompt chunks in a row while an answer waited: {kinds:?}");
    let answers = kinds.iter().filter(|kind| **kind == LapKind::Decode).count();
    assert_eq!((kinds.len(), answers), (12, 6), "{kinds:?}");
}

#[test]
fn who_leaves_while_waiting_costs_the_stages_nothing() {
    let mut s = Scheduler::new(shape(1, 4, 2));
    let stays = s.submit(request(4, 5)).unwrap();
    for _ in 0..50 {
        s.submit(request(4, 5)).unwrap();
    }
    let mut laps = vec![];
    while let Some(action) = s.poll() {
        match action {
            Action::Open(open) if open.sequence != stays => s.forget(open.sequence),
            Action::Close { sequence } => panic!("no stage knows {sequence}"),
            Action::Lap(lap) => laps.push(lap),
            Action::Open(_) | Action::Deliver { .. } => {}
        }
    }
    assert_eq!(laps.len(), 1);
    assert_eq!(s.load(), (1, 0));
}

#[test]
fn a_sequence_is_opened_when_there_is_room_for_its_lap() {
    let mut s = Scheduler::new(shape(1, 4, 2));
    s.submit(request(4, 5)).unwrap();
    assert_eq!(drain(&mut s).len(), 2, "its open and its lap");
    s.submit(request(4, 5)).unwrap();
    assert!(drain(&mut s).is_empty());
    assert_eq!(s.load(), (1, 1));
}

#[test]
fn a_full_queue_refuses_by_name() {
    let mut s = Scheduler::new(Shape {
        queue: 1,
        ..shape(1, 4, 1)
    });
    s.submit(request(1, 1)).unwrap();
    assert_eq!(s.submit(request(1, 1)), Err(RingError::Busy { waiting: 1 }));
}

#[test]
fn a_full_context_ends_the_text_with_length() {
    let mut s = Scheduler::new(Shape {
        context_length: 8,
        ..shape(1, 8, 1)
    });
    let id = s.submit(request(7, 50)).unwrap();
    let mut got = vec![];
    while let Some(action) = s.poll() {
        match action {
            Action::Lap(lap) => s.home(&answer(&lap, &HashMap::from([(id, 7)]), |_, _| 9)).unwrap(),
            Action::Deliver { event, .. } => got.push(event),
            _ => {}
        }
    }
    // Positions 0…7 hold prompt and first token; the token for position 8 is still told.
    assert_eq!(got.iter().filter(|e| matches!(e, Event::Token(_))).count(), 2);
    assert!(matches!(got.last(), Some(Event::Done(Finish::Length))));
}

#[test]
fn what_the_last_rank_must_not_send_is_an_error() {
    let mut s = Scheduler::new(shape(1, 4, 1));
    let id = s.submit(request(2, 5)).unwrap();
    let Some(Action::Lap(lap)) = drain(&mut s).into_iter().find(|a| matches!(a, Action::Lap(_))) else {
        panic!()
    };
    let foreign = Tokens {
        lap: lap.id,
        compute_us: 0,
        sampled: vec![token(id, 9, 1)],
    };
    assert_eq!(
        s.home(&foreign),
        Err(ScheduleError::ForeignToken {
            lap: lap.id,
            sequence: id,
            position: 9
        })
    );
    assert_eq!(
        s.home(&Tokens {
            lap: 99,
            compute_us: 0,
            sampled: vec![]
        }),
        Err(ScheduleError::UnknownLap(99))
    );
}

proptest! {
    #[test]
    fn laps_stay_within_the_manifest_and_every_request_ends(
        requests in prop::collection::vec((1usize..30, 1u32..20), 1..8),
        max_laps in 1usize..4,
        max_lap_tokens in 1u32..9,
        sequences in 1usize..4,
        order in prop::collection::vec(0usize..8, 400),
        cancels in prop::collection::vec((0usize..8, 0usize..60), 0..4),
    ) {
        let mut s = Scheduler::new(shape(max_laps, max_lap_tokens, sequences));
        let mut prompts = HashMap::new();
        for &(prompt, max_tokens) in &requests {
            prompts.insert(s.submit(request(prompt, max_tokens)).unwrap(), prompt);
        }
        let ids: Vec<u64> = { let mut v: Vec<u64> = prompts.keys().copied().collect(); v.sort_unstable(); v };
        let mut fed: HashMap<u64, u32> = HashMap::new();
        let mut open: Vec<u64> = vec![];
        let mut closed: Vec<u64> = vec![];
        let mut cancelled: Vec<u64> = vec![];
        let mut finals: HashMap<u64, u32> = HashMap::new();
        let mut tokens_told: HashMap<u64, u32> = HashMap::new();
        let mut flying: Vec<Outgoing> = vec![];
        for step in 0.. {
            for &(who, when) in &cancels {
                if when == step && who < ids.len() {
                    s.cancel(ids[who]);
                    cancelled.push(ids[who]);
                }
            }
            while let Some(action) = s.poll() {
                match action {
                    Action::Open(o) => { open.push(o.sequence); prop_assert!(open.len() <= sequences); }
                    Action::Close { sequence } => {
                        prop_assert!(!flying.iter().any(|l| l.spans.iter().any(|sp| sp.sequence == sequence)));
                        open.retain(|o| *o != sequence);
                        closed.push(sequence);
                    }
                    Action::Lap(lap) => {
                        prop_assert_eq!(lap.tokens.len() as u32, lap.spans.iter().map(|s| s.count).sum::<u32>());
                        prop_assert!(!lap.tokens.is_empty() && lap.tokens.len() as u32 <= max_lap_tokens);
                        for span in &lap.spans {
                            prop_assert!(open.contains(&span.sequence));
                            let at = fed.entry(span.sequence).or_default();
                            prop_assert_eq!(span.position, *at, "positions are fed once, in order");
                            *at += span.count;
                        }
                        flying.push(lap);
                        prop_assert!(flying.len() <= max_laps);
                    }
                    Action::Deliver { sequence, event } => {
                        prop_assert!(!finals.contains_key(&sequence), "nothing follows the end");
                        match event {
                            Event::Token(_) => *tokens_told.entry(sequence).or_default() += 1,
                            Event::Done(_) | Event::Failed(_) => { finals.insert(sequence, tokens_told.get(&sequence).copied().unwrap_or(0)); }
                            Event::Prefilled { .. } => {}
                        }
                    }
                }
            }
            if flying.is_empty() { break; }
            // laps come home in the order they left: edges are first in, first out within a kind
            let pick = order[step % order.len()] % flying.len();
            let kind = flying[pick].kind;
            let first = flying.iter().position(|l| l.kind == kind).unwrap();
            let lap = flying.remove(first);
            s.home(&answer(&lap, &prompts, |_, p| if p % 13 == 0 { STOP } else { 50 })).unwrap();
        }
        for (i, id) in ids.iter().enumerate() {
            if cancelled.contains(id) { continue; }
            prop_assert!(finals.contains_key(id) && closed.contains(id), "request {} never ended", id);
            prop_assert!(finals[id] <= requests[i].1);
        }
        prop_assert_eq!(s.load(), (0, 0));
    }
}
