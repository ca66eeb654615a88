//! A model of the ring's queues, checked over every interleaving: with inboxes of L laps and L laps admitted, no
//! reader waits, no send finds a full queue, and every lap comes home whatever order the tasks run in.

use stateright::{Checker, Model, Property};

/// Queues of one stage and of the edge that leaves it. Laps are alike, so counts are enough.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Station {
    inbox: usize,
    engine: bool,
    outbox: usize,
    socket: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    stations: Vec<Station>,
    in_flight: usize,
    left: usize,
    /// a reader found its inbox full
    overrun: bool,
    /// an engine found the writer's queue full
    waited: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Admit,
    Take(usize),
    Finish(usize),
    Write(usize),
    Read(usize),
}

/// The smallest socket there can be holds one frame.
const SOCKET: usize = 1;

struct Ring {
    stages: usize,
    /// laps that rank 0 admits
    admitted: usize,
    /// laps that an inbox and a writer's queue hold
    room: usize,
    laps: usize,
}

impl Model for Ring {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let stations = vec![Station::default(); self.stages];
        vec![State {
            stations,
            in_flight: 0,
            left: self.laps,
            overrun: false,
            waited: false,
        }]
    }

    fn actions(&self, s: &State, steps: &mut Vec<Step>) {
        if s.left > 0 && s.in_flight < self.admitted {
            steps.push(Step::Admit);
        }
        for (i, station) in s.stations.iter().enumerate() {
            if station.inbox > 0 && !station.engine {
                steps.push(Step::Take(i));
            }
            if station.engine {
                steps.push(Step::Finish(i));
            }
            if station.outbox > 0 && station.socket < SOCKET {
                steps.push(Step::Write(i));
            }
            if station.socket > 0 {
                steps.push(Step::Read(i));
            }
        }
    }

    fn next_state(&self, s: &State, step: Step) -> Option<State> {
        let mut s = s.clone();
        match step {
            Step::Admit => {
                s.left -= 1;
                s.in_flight += 1;
                s.overrun |= s.stations[0].inbox == self.room;
                s.stations[0].inbox += 1;
            }
            Step::Take(i) => {
                s.stations[i].inbox -= 1;
                s.stations[i].engine = true;
            }
            Step::Finish(i) => {
                s.waited |= s.stations[i].outbox == self.room;
                s.stations[i].engine = false;
                s.stations[i].outbox += 1;
            }
            Step::Write(i) => {
                s.stations[i].outbox -= 1;
                s.stations[i].socket += 1;
            }
            Step::Read(i) => {
                s.stations[i].socket -= 1;
                let next = i + 1;
                if next == self.stages {
                    s.in_flight -= 1;
                } else {
                    s.overrun |= s.stations[next].inbox == self.room;
                    s.stations[next].inbox += 1;
                }
            }
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no reader finds a full inbox", |_, s: &State| !s.overrun),
            Property::always("no engine waits for its writer", |_, s: &State| !s.waited),
            Property::eventually("every lap comes home", |_, s: &State| s.left == 0 && s.in_flight == 0),
        ]
    }
}

#[test]
fn rings_of_one_to_four_stages_never_wait_on_a_full_queue_and_every_lap_comes_home() {
    for stages in 1..=4 {
        for admitted in 1..=3 {
            let ring = Ring {
                stages,
                admitted,
                room: admitted,
                laps: admitted + 2,
            };
            ring.checker().spawn_bfs().join().assert_properties();
        }
    }
}

#[test]
fn the_model_sees_an_inbox_that_is_one_lap_too_small() {
    let ring = Ring {
        stages: 3,
        admitted: 3,
        room: 2,
        laps: 5,
    };
    let checker = ring.checker().spawn_bfs().join();
    assert!(checker.discovery("no reader finds a full inbox").is_some());
}
