//! Picks the next token of one sequence from a row of logits.
//!
//! The steps, in order: penalties, logit bias, grammar, temperature (0 is greedy, ties go to the lowest id), top-k,
//! top-p, min-p, draw. The only chance in it is [`uniform`], a function of seed and position, so that a token does not
//! depend on when, where or beside what it is sampled. Log-probabilities are those of the model's plain distribution:
//! the log-softmax of the logits as they came in.

mod chance;
mod choice;
mod gbnf;
mod grammar;
mod history;
mod pattern;
mod ranking;
mod schema;
mod ways;

pub use chance::uniform;

use crate::Vocabulary;
use choice::Scale;
use grammar::{Constraint, TokenGrammar};
use history::History;
use kvasir_wire::frame::{Grammar, Sampling};
use ranking::Candidate;

/// Why no token can be sampled.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// a parameter that means nothing
    #[error("{parameter} is {value}: {rule}")]
    Parameter {
        /// its name
        parameter: &'static str,
        /// what it was
        value: f32,
        /// what it has to be
        rule: &'static str,
    },
    /// a token id that the model does not have
    #[error("token {token} is out of range: the vocabulary has {vocabulary}")]
    Token {
        /// id
        token: i32,
        /// how many there are
        vocabulary: usize,
    },
    /// the JSON schema can't be turned into a grammar
    #[error("the JSON schema can't be turned into a grammar: {detail}")]
    Schema {
        /// what is wrong with it
        detail: String,
    },
    /// the grammar is malformed
    #[error("the grammar is malformed: {detail}")]
    Grammar {
        /// what is wrong with it
        detail: String,
    },
    /// grammar and bias together leave no token
    #[error("no token is left to choose: the grammar and the logit bias forbid all")]
    NoToken,
    /// infinity or not-a-number among the logits
    #[error("the logits are not finite: the weights are damaged, or the hidden states were")]
    NotFinite,
    /// not a row of this vocabulary
    #[error("a row has {got} logits, the vocabulary {expected}")]
    Length {
        /// values in the row
        got: usize,
        /// tokens of the vocabulary
        expected: usize,
    },
    /// a token that the grammar forbids here was put into the text
    #[error("token {token} does not follow the grammar")]
    OffGrammar {
        /// id
        token: i32,
    },
}

impl SamplerError {
    /// Stable `PascalCase` word for metrics, events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            SamplerError::Parameter { .. } | SamplerError::Token { .. } => "InvalidParameter",
            SamplerError::Schema { .. } => "InvalidSchema",
            SamplerError::Grammar { .. } => "InvalidGrammar",
            SamplerError::NoToken => "NoToken",
            SamplerError::NotFinite => "NotFinite",
            SamplerError::Length { .. } => "InvalidInput",
            SamplerError::OffGrammar { .. } => "OffGrammar",
        }
    }
}

/// Checks a grammar without a sampler for it: rank 0 refuses what the last rank could not use.
///
/// # Errors
/// [`SamplerError::Schema`] and [`SamplerError::Grammar`] name the fault.
pub fn check_grammar(grammar: &Grammar, vocabulary: &Vocabulary) -> Result<(), SamplerError> {
    TokenGrammar::new(grammar, vocabulary).map(drop)
}

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// id
    pub token: i32,
    /// its log-probability in the model's plain distribution; 0 unless asked for
    pub logprob: f32,
    /// the likeliest tokens and their log-probabilities, best first; empty unless asked for
    pub top: Vec<(i32, f32)>,
}

/// Samples one sequence: it remembers the text so far, for penalties and grammar.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    vocabulary: usize,
    /// tokens that are never sampled, as a bias of −∞, and the request's own
    bias: Vec<(i32, f32)>,
    history: History,
    grammar: Option<Box<dyn Constraint>>,
    scratch: Scratch,
}

/// Rows and lists that calls reuse.
#[derive(Debug, Default)]
struct Scratch {
    /// logits before penalties and bias, of the tokens that had any
    before: Vec<(usize, f32)>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler for a sequence that begins with `prompt`.
    ///
    /// # Errors
    /// Names the parameter that is out of range, or the fault in the grammar or schema.
    pub fn new(sampling: &Sampling, prompt: &[i32], vocabulary: &Vocabulary) -> Result<Sampler, SamplerError> {
        let grammar = match &sampling.grammar {
            Some(grammar) => Some(Box::new(TokenGrammar::new(grammar, vocabulary)?) as Box<dyn Constraint>),
            None => None,
        };
        Sampler::with_constraint(sampling, prompt, vocabulary.len(), vocabulary.suppressed(), grammar)
    }

    fn with_constraint(
        sampling: &Sampling,
        prompt: &[i32],
        vocabulary: usize,
        suppressed: &[i32],
        grammar: Option<Box<dyn Constraint>>,
    ) -> Result<Sampler, SamplerError> {
        check(sampling, vocabulary)?;
        let suppressed = suppressed.iter().map(|&token| (token, f32::NEG_INFINITY));
        Ok(Sampler {
            bias: sampling.logit_bias.iter().copied().chain(suppressed).collect(),
            history: History::new(sampling, prompt),
            sampling: sampling.clone(),
            vocabulary,
            grammar,
            scratch: Scratch::default(),
        })
    }

    /// Samples the token at `position` and puts it into the text. The row is left as it was.
    ///
    /// # Errors
    /// [`SamplerError::NoToken`], [`SamplerError::NotFinite`], [`SamplerError::Length`]; the text is unchanged then.
    pub fn sample(&mut self, logits: &mut [f32], position: u32) -> Result<Choice, SamplerError> {
        if logits.len() != self.vocabulary {
            return Err(SamplerError::Length {
                got: logits.len(),
                expected: self.vocabulary,
            });
        }
        let plain = self
            .sampling
            .top_logprobs
            .map(|count| Plain::of(logits, count.into()))
            .transpose()?;
        self.scratch.before.clear();
        self.history.penalize(&self.sampling, logits, &mut self.scratch.before);
        for &(token, bias) in &self.bias {
            // ids were checked in `new`, except the model's own
            if let Some(logit) = logits.get_mut(token as usize) {
                self.scratch.before.push((token as usize, *logit));
                *logit += bias;
            }
        }
        let chosen = self.choose(logits, position);
        for &(token, logit) in self.scratch.before.iter().rev() {
            logits[token] = logit;
        }
        let token = chosen?;
        self.accept(token)?;
        let (logprob, top) = plain.map_or((0.0, Vec::new()), |plain| {
            (plain.logprob(logits[token as usize]), plain.top)
        });
        Ok(Choice { token, logprob, top })
    }

    /// Puts a token into the text that was sampled elsewhere: a replaced last rank is told the answer so far.
    ///
    /// # Errors
    /// [`SamplerError::OffGrammar`], [`SamplerError::Token`].
    pub fn accept(&mut self, token: i32) -> Result<(), SamplerError> {
        if usize::try_from(token).map_or(true, |token| token >= self.vocabulary) {
            return Err(SamplerError::Token {
                token,
                vocabulary: self.vocabulary,
            });
        }
        if let Some(grammar) = &mut self.grammar {
            grammar.accept(token)?;
        }
        self.history.push(token);
        Ok(())
    }

    fn choose(&mut self, logits: &[f32], position: u32) -> Result<i32, SamplerError> {
        let Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            seed,
            ..
        } = self.sampling;
        let candidates = &mut self.scratch.candidates;
        let best = ranking::highest(logits)?;
        let greedy = temperature == 0.0;
        if greedy || top_k > 0 {
            match (&mut self.grammar, greedy) {
                (None, true) => return Ok(best.token),
                (None, false) => ranking::best(logits, top_k as usize, candidates),
                (Some(grammar), _) => {
                    let count = if greedy { 1 } else { top_k as usize };
                    best_allowed(logits, count, grammar.as_mut(), candidates);
                }
            }
            let first = candidates.first().ok_or(SamplerError::NoToken)?;
            if greedy {
                return Ok(first.token);
            }
            let scale = Scale::new(first.logit, &self.sampling);
            let mass = scale.sum(candidates);
            return choice::ranked(
                candidates,
                &scale,
                (mass, mass),
                true,
                &self.sampling,
                uniform(seed, position),
            )
            .ok_or(SamplerError::NoToken);
        }
        let chance = uniform(seed, position);
        match &mut self.grammar {
            Some(grammar) => among_allowed(logits, &self.sampling, chance, grammar.as_mut(), candidates),
            None if top_p < 1.0 || min_p > 0.0 => choice::nucleus(logits, &self.sampling, chance, candidates),
            None => choice::plain(logits, &self.sampling, chance),
        }
    }
}

/// The `count` best candidates that the constraint allows. Few are tried first, since the constraint is slow; the
/// result is the same as that of filtering all.
fn best_allowed(logits: &[f32], count: usize, constraint: &mut dyn Constraint, candidates: &mut Vec<Candidate>) {
    let mut tried = count.saturating_mul(4).max(16);
    loop {
        ranking::best(logits, tried, candidates);
        constraint.retain(candidates);
        if candidates.len() >= count || tried >= logits.len() {
            candidates.truncate(count);
            return;
        }
        tried = tried.saturating_mul(choice::MORE);
    }
}

/// Draws, best first, from all that the constraint allows. The likeliest tokens are tried first: often the rest, allowed
/// or not, weighs too little to change what is drawn.
fn among_allowed(
    logits: &[f32],
    sampling: &Sampling,
    chance: f64,
    constraint: &mut dyn Constraint,
    candidates: &mut Vec<Candidate>,
) -> Result<i32, SamplerError> {
    /// What rounding may have taken from the rest's weight, as a share of all.
    const ROUNDING: f64 = 1e-12;
    let plain = Scale::new(ranking::highest(logits)?.logit, sampling);
    let total: f64 = logits.iter().map(|&logit| plain.weight(logit)).sum();
    let mut count = choice::RANKED;
    loop {
        let all = count >= logits.len();
        ranking::best(logits, count, candidates);
        let rest = if all {
            0.0
        } else {
            (total - plain.sum(candidates)).max(0.0) + total * ROUNDING
        };
        constraint.retain(candidates);
        if let Some(first) = candidates.first() {
            let scale = Scale::new(first.logit, sampling);
            let mass = scale.sum(candidates);
            // the rest's weight beside that of the first allowed
            let most = if all {
                mass
            } else {
                mass + rest / plain.weight(first.logit)
            };
            if let Some(token) = choice::ranked(candidates, &scale, (mass, most), all, sampling, chance) {
                return Ok(token);
            }
        }
        if all {
            return Err(SamplerError::NoToken);
        }
        count *= choice::MORE;
    }
}

/// The model's own distribution.
struct Plain {
    log_sum: f64,
    top: Vec<(i32, f32)>,
}

impl Plain {
    fn of(logits: &[f32], count: usize) -> Result<Plain, SamplerError> {
        let highest = f64::from(ranking::highest(logits)?.logit);
        let log_sum = highest
            + logits
                .iter()
                .map(|&logit| (f64::from(logit) - highest).exp())
                .sum::<f64>()
                .ln();
        let mut candidates = Vec::new();
        ranking::best(logits, count, &mut candidates);
        let mut plain = Plain {
            log_sum,
            top: Vec::new(),
        };
        plain.top = candidates
            .iter()
            .map(|candidate| (candidate.token, plain.logprob(candidate.logit)))
            .collect();
        Ok(plain)
    }

    fn logprob(&self, logit: f32) -> f32 {
        (f64::from(logit) - self.log_sum) as f32
    }
}

fn check(sampling: &Sampling, vocabulary: usize) -> Result<(), SamplerError> {
    let parameters: [(&'static str, f32, bool, &'static str); 6] = [
        (
            "temperature",
            sampling.temperature,
            sampling.temperature >= 0.0,
            "it must be 0 or more",
        ),
        (
            "topP",
            sampling.top_p,
            (0.0..=1.0).contains(&sampling.top_p),
            "it must be between 0 and 1",
        ),
        (
            "minP",
            sampling.min_p,
            (0.0..=1.0).contains(&sampling.min_p),
            "it must be between 0 and 1",
        ),
        (
            "repetitionPenalty",
            sampling.repetition_penalty,
            sampling.repetition_penalty > 0.0,
            "it must be more than 0",
        ),
        (
            "presencePenalty",
            sampling.presence_penalty,
            true,
            "it must be a number",
        ),
        (
            "frequencyPenalty",
            sampling.frequency_penalty,
            true,
            "it must be a number",
        ),
    ];
    for (parameter, value, in_range, rule) in parameters {
        if !value.is_finite() || !in_range {
            return Err(SamplerError::Parameter { parameter, value, rule });
        }
    }
    for &(token, bias) in &sampling.logit_bias {
        if usize::try_from(token).map_or(true, |token| token >= vocabulary) {
            return Err(SamplerError::Token { token, vocabulary });
        }
        if bias.is_nan() || bias == f32::INFINITY {
            let rule = "it must be a number, or minus infinity to forbid the token";
            return Err(SamplerError::Parameter {
                parameter: "logitBias",
                value: bias,
                rule,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
