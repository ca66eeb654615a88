//! How many ways a grammar leaves open at one place of a text. llama.cpp keeps one stack for each way and looks at every token
//! of the vocabulary with each: a few hundred bytes of grammar can ask for 2⁴⁰ of them.

use std::collections::HashMap;

/// Ways at one place at most: enough for an object of some hundred optional members or an enumeration of as many values.
pub(super) const MAX_WAYS: u64 = 512;

/// One item of a sequence.
#[derive(Clone, Debug)]
pub(super) struct Part<'a> {
    pub(super) what: What<'a>,
    /// what stands there may be left out
    pub(super) optional: bool,
}

/// What stands at a place.
#[derive(Clone, Debug)]
pub(super) enum What<'a> {
    /// a character, a class or a token
    Terminal,
    /// another rule
    Rule(&'a str),
    /// alternatives in parentheses
    Group(Alternatives<'a>),
}

/// Sequences, one of which is chosen.
pub(super) type Alternatives<'a> = Vec<Vec<Part<'a>>>;

/// Ways through something: to its first terminal, and past it without any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ways {
    to_terminal: u64,
    past: u64,
}

/// Counts the ways through rules; what was counted is kept.
#[derive(Debug)]
pub(super) struct Counter<'a> {
    rules: &'a HashMap<&'a str, Alternatives<'a>>,
    /// none while a rule is being counted: llama.cpp refuses rules that begin with themselves
    counted: HashMap<&'a str, Option<Ways>>,
    most: u64,
}

/// The most ways that the grammar leaves open at any place.
pub(super) fn most<'a>(rules: &'a HashMap<&'a str, Alternatives<'a>>) -> u64 {
    let mut counter = Counter {
        rules,
        counted: HashMap::new(),
        most: 0,
    };
    for name in rules.keys() {
        counter.rule(name);
    }
    counter.most
}

impl<'a> Counter<'a> {
    fn rule(&mut self, name: &'a str) -> Ways {
        let none = Ways {
            to_terminal: 0,
            past: 0,
        };
        match self.counted.get(name) {
            Some(counted) => return counted.unwrap_or(none),
            None => self.counted.insert(name, None),
        };
        let rules = self.rules;
        let ways = rules
            .get(name)
            .map_or(none, |alternatives| self.alternatives(alternatives));
        self.counted.insert(name, Some(ways));
        ways
    }

    fn alternatives(&mut self, alternatives: &'a Alternatives<'a>) -> Ways {
        let mut all = Ways {
            to_terminal: 0,
            past: 0,
        };
        for sequence in alternatives {
            let ways = self.sequence(sequence);
            all.to_terminal = all.to_terminal.saturating_add(ways.to_terminal);
            all.past = all.past.saturating_add(ways.past);
        }
        self.most = self.most.max(all.to_terminal);
        all
    }

    /// From the right, since a text may stand at any place of the sequence.
    fn sequence(&mut self, sequence: &'a [Part<'a>]) -> Ways {
        let mut rest = Ways {
            to_terminal: 0,
            past: 1,
        };
        for part in sequence.iter().rev() {
            let mut ways = match &part.what {
                What::Terminal => Ways {
                    to_terminal: 1,
                    past: 0,
                },
                What::Rule(name) => self.rule(name),
                What::Group(alternatives) => self.alternatives(alternatives),
            };
            ways.past = ways.past.saturating_add(part.optional.into());
            rest = Ways {
                to_terminal: ways
                    .to_terminal
                    .saturating_add(ways.past.saturating_mul(rest.to_terminal)),
                past: ways.past.saturating_mul(rest.past),
            };
            self.most = self.most.max(rest.to_terminal).max(rest.past);
        }
        rest
    }
}
