use super::*;
use proptest::prelude::*;

/// Allows the tokens for which the rule holds, given the text so far.
#[derive(Debug)]
struct Rule {
    text: Vec<i32>,
    allows: fn(&[i32], i32) -> bool,
}

impl Constraint for Rule {
    fn retain(&mut self, candidates: &mut Vec<Candidate>) {
        candidates.retain(|candidate| (self.allows)(&self.text, candidate.token));
    }

    fn accept(&mut self, token: i32) -> Result<(), SamplerError> {
        if !(self.allows)(&self.text, token) {
            return Err(SamplerError::OffGrammar { token });
        }
        self.text.push(token);
        Ok(())
    }
}

fn sampler(sampling: &Sampling, vocabulary: usize) -> Sampler {
    Sampler::with_constraint(sampling, &[], vocabulary, &[], None).unwrap()
}

fn constrained(sampling: &Sampling, vocabulary: usize, allows: fn(&[i32], i32) -> bool) -> Sampler {
    let rule = Box::new(Rule {
        text: Vec::new(),
        allows,
    });
    Sampler::with_constraint(sampling, &[], vocabulary, &[], Some(rule)).unwrap()
}

/// Logits of given probabilities.
fn row(probabilities: &[f64]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln() as f32).collect()
}

/// How often each token is drawn over many positions.
fn shares(sampling: &Sampling, logits: &[f32]) -> Vec<f64> {
    const DRAWS: u32 = 20_000;
    let mut counts = vec![0.0; logits.len()];
    for position in 0..DRAWS {
        let choice = sampler(sampling, logits.len())
            .sample(&mut logits.to_vec(), position)
            .unwrap();
        counts[choice.token as usize] += 1.0 / f64::from(DRAWS);
    }
    counts
}

fn assert_near(got: &[f64], expected: &[f64]) {
    let near = got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.015);
    assert!(near && got.len() == expected.len(), "{got:?} is not near {expected:?}");
}

#[test]
fn temperature_zero_is_greedy_and_ties_go_to_the_lowest_id() {
    let greedy = Sampling {
        temperature: 0.0,
        ..Sampling::default()
    };
    let mut logits = vec![0.0, 3.0, 1.0, 3.0];
    assert_eq!(sampler(&greedy, 4).sample(&mut logits, 0).unwrap().token, 1);
    let limited = Sampling { top_k: 3, ..greedy };
    assert_eq!(sampler(&limited, 4).sample(&mut logits, 0).unwrap().token, 1);
}

#[test]
fn defaults_draw_from_the_plain_distribution() {
    let probabilities = [0.5, 0.25, 0.15, 0.1];
    assert_near(&shares(&Sampling::default(), &row(&probabilities)), &probabilities);
}

#[test]
fn temperature_sharpens_and_flattens() {
    let cold = Sampling {
        temperature: 0.5,
        ..Sampling::default()
    };
    // squares of the probabilities, normalised
    assert_near(
        &shares(&cold, &row(&[0.6, 0.3, 0.1])),
        &[0.36 / 0.46, 0.09 / 0.46, 0.01 / 0.46],
    );
}

#[test]
fn top_k_keeps_the_k_likeliest() {
    let sampling = Sampling {
        top_k: 2,
        ..Sampling::default()
    };
    assert_near(
        &shares(&sampling, &row(&[0.1, 0.4, 0.2, 0.3])),
        &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0],
    );
}

#[test]
fn top_p_keeps_the_fewest_that_sum_to_p() {
    let logits = row(&[0.1, 0.4, 0.2, 0.3]);
    let of = |top_p| {
        shares(
            &Sampling {
                top_p,
                ..Sampling::default()
            },
            &logits,
        )
    };
    assert_near(&of(0.65), &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
    assert_near(&of(0.75), &[0.0, 4.0 / 9.0, 2.0 / 9.0, 3.0 / 9.0]);
    assert_near(&of(0.0), &[0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn top_p_is_a_share_of_what_top_k_left() {
    let sampling = Sampling {
        top_k: 2,
        top_p: 0.55,
        ..Sampling::default()
    };
    // of 0.4 and 0.3, the first has 4/7 = 0.571
    assert_near(&shares(&sampling, &row(&[0.1, 0.4, 0.2, 0.3])), &[0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn min_p_keeps_what_is_near_the_likeliest() {
    let sampling = Sampling {
        min_p: 0.6,
        ..Sampling::default()
    };
    assert_near(
        &shares(&sampling, &row(&[0.1, 0.4, 0.2, 0.3])),
        &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0],
    );
}

#[test]
fn repetition_is_penalised_in_prompt_and_answer_within_reach() {
    let sampling = Sampling {
        temperature: 0.0,
        repetition_penalty: 2.0,
        penalty_last: 2,
        ..Sampling::default()
    };
    let mut sampler = Sampler::with_constraint(&sampling, &[0, 1], 4, &[], None).unwrap();
    let mut logits = vec![3.0, 2.9, -1.0, 1.6];
    // 1.5, 1.45, -1, 1.6
    assert_eq!(sampler.sample(&mut logits, 2).unwrap().token, 3);
    // token 0 is out of reach now
    assert_eq!(sampler.sample(&mut logits, 3).unwrap().token, 0);
    assert_eq!(logits, [3.0, 2.9, -1.0, 1.6]);
}

#[test]
fn presence_and_frequency_look_at_the_answer_only() {
    let sampling = Sampling {
        temperature: 0.0,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        ..Sampling::default()
    };
    let mut sampler = Sampler::with_constraint(&sampling, &[0, 0, 0], 2, &[], None).unwrap();
    let mut logits = vec![1.0, 0.0];
    let tokens: Vec<i32> = (3..9)
        .map(|position| sampler.sample(&mut logits, position).unwrap().token)
        .collect();
    // token 0 falls to 0.25, to 0 (a tie that it wins) and to −0.25; token 1 then to −0.75
    assert_eq!(tokens, [0, 0, 0, 1, 0, 0]);
}

#[test]
fn bias_is_added_and_forbids() {
    let sampling = Sampling {
        temperature: 0.0,
        logit_bias: vec![(0, f32::NEG_INFINITY), (2, 5.0)],
        ..Sampling::default()
    };
    assert_eq!(sampler(&sampling, 3).sample(&mut [9.0, 4.0, 0.0], 0).unwrap().token, 2);
    let all = Sampling {
        logit_bias: vec![(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY)],
        ..Sampling::default()
    };
    assert!(matches!(
        sampler(&all, 2).sample(&mut [1.0, 1.0], 0),
        Err(SamplerError::NoToken)
    ));
}

#[test]
fn tokens_that_the_model_suppresses_are_never_sampled() {
    let sampling = Sampling {
        temperature: 0.0,
        ..Sampling::default()
    };
    let mut sampler = Sampler::with_constraint(&sampling, &[], 2, &[1, 99], None).unwrap();
    assert_eq!(sampler.sample(&mut [0.0, 1.0], 0).unwrap().token, 0);
}

#[test]
fn log_probabilities_are_those_of_the_plain_distribution() {
    let sampling = Sampling {
        temperature: 0.0,
        top_k: 1,
        top_logprobs: Some(2),
        logit_bias: vec![(2, 10.0)],
        ..Sampling::default()
    };
    let choice = sampler(&sampling, 3).sample(&mut row(&[0.5, 0.375, 0.125]), 0).unwrap();
    assert_eq!(choice.token, 2);
    assert!((f64::from(choice.logprob) - 0.125_f64.ln()).abs() < 1e-6);
    let top: Vec<(i32, f64)> = choice
        .top
        .iter()
        .map(|&(token, p)| (token, (f64::from(p).exp() * 1e6).round()))
        .collect();
    assert_eq!(top, [(0, 500_000.0), (1, 375_000.0)]);
    let without = Sampling {
        top_logprobs: None,
        ..sampling
    };
    let choice = sampler(&without, 3).sample(&mut row(&[0.5, 0.375, 0.125]), 0).unwrap();
    assert_eq!((choice.logprob, choice.top), (0.0, vec![]));
}

#[test]
fn a_token_depends_on_seed_and_position_alone() {
    let sampling = Sampling {
        seed: 42,
        ..Sampling::default()
    };
    let logits = row(&[0.25; 4]);
    let mut one = sampler(&sampling, 4);
    let run: Vec<i32> = (0..50)
        .map(|position| one.sample(&mut logits.clone(), position).unwrap().token)
        .collect();
    // a fresh sampler in the middle of the text goes on alike
    let late: Vec<i32> = (0..50)
        .map(|position| {
            sampler(&sampling, 4)
                .sample(&mut logits.clone(), position)
                .unwrap()
                .token
        })
        .collect();
    assert_eq!(run, late);
    let other = Sampling { seed: 43, ..sampling };
    let mut two = sampler(&other, 4);
    assert_ne!(
        run,
        (0..50)
            .map(|position| two.sample(&mut logits.clone(), position).unwrap().token)
            .collect::<Vec<_>>()
    );
}

#[test]
fn a_sampler_that_is_told_the_answer_goes_on_like_the_one_that_sampled_it() {
    let sampling = Sampling {
        repetition_penalty: 1.5,
        presence_penalty: 0.3,
        frequency_penalty: 0.2,
        seed: 7,
        ..Sampling::default()
    };
    let logits = row(&[0.3, 0.3, 0.2, 0.2]);
    let mut first = sampler(&sampling, 4);
    let answer: Vec<i32> = (0..20)
        .map(|position| first.sample(&mut logits.clone(), position).unwrap().token)
        .collect();
    let mut second = sampler(&sampling, 4);
    answer.iter().for_each(|&token| second.accept(token).unwrap());
    for position in 20..40 {
        let expected = first.sample(&mut logits.clone(), position).unwrap();
        assert_eq!(second.sample(&mut logits.clone(), position).unwrap(), expected);
    }
}

#[test]
fn parameters_out_of_range_are_named() {
    let fault = |sampling: Sampling| {
        Sampler::with_constraint(&sampling, &[], 10, &[], None)
            .err()
            .map(|error| error.to_string())
            .unwrap()
    };
    let plain = Sampling::default;
    assert_eq!(
        fault(Sampling {
            temperature: -1.0,
            ..plain()
        }),
        "temperature is -1: it must be 0 or more"
    );
    assert_eq!(
        fault(Sampling {
            temperature: f32::NAN,
            ..plain()
        }),
        "temperature is NaN: it must be 0 or more"
    );
    assert_eq!(
        fault(Sampling { top_p: 1.5, ..plain() }),
        "topP is 1.5: it must be between 0 and 1"
    );
    assert_eq!(
        fault(Sampling {
            min_p: f32::INFINITY,
            ..plain()
        }),
        "minP is inf: it must be between 0 and 1"
    );
    assert_eq!(
        fault(Sampling {
            repetition_penalty: 0.0,
            ..plain()
        }),
        "repetitionPenalty is 0: it must be more than 0"
    );
    assert_eq!(
        fault(Sampling {
            presence_penalty: f32::NAN,
            ..plain()
        }),
        "presencePenalty is NaN: it must be a number"
    );
    assert_eq!(
        fault(Sampling {
            logit_bias: vec![(10, 0.0)],
            ..plain()
        }),
        "token 10 is out of range: the vocabulary has 10"
    );
    assert_eq!(
        fault(Sampling {
            logit_bias: vec![(-1, 0.0)],
            ..plain()
        }),
        "token -1 is out of range: the vocabulary has 10"
    );
    assert!(
        fault(Sampling {
            logit_bias: vec![(1, f32::INFINITY)],
            ..plain()
        })
        .starts_with("logitBias is inf")
    );
}

#[test]
fn rows_that_are_not_logits_are_refused() {
    let mut plain = sampler(&Sampling::default(), 3);
    assert!(matches!(
        plain.sample(&mut [0.0, f32::NAN, 0.0], 0),
        Err(SamplerError::NotFinite)
    ));
    assert!(matches!(
        plain.sample(&mut [0.0, f32::INFINITY, 0.0], 0),
        Err(SamplerError::NotFinite)
    ));
    assert!(matches!(
        plain.sample(&mut [0.0; 4], 0),
        Err(SamplerError::Length { got: 4, expected: 3 })
    ));
}

#[test]
fn a_grammar_that_allows_nothing_is_an_error() {
    let mut sampler = constrained(&Sampling::default(), 3, |_, _| false);
    assert!(matches!(sampler.sample(&mut [0.0; 3], 0), Err(SamplerError::NoToken)));
    assert!(matches!(sampler.accept(1), Err(SamplerError::OffGrammar { token: 1 })));
}

/// Sampling settings of every kind, so that each path is taken.
fn settings() -> impl Strategy<Value = Sampling> {
    (
        prop_oneof![Just(0.0_f32), 0.1_f32..3.0],
        prop_oneof![Just(0_u32), 1_u32..50],
        prop_oneof![Just(1.0_f32), 0.0_f32..1.0],
        prop_oneof![Just(0.0_f32), 0.0_f32..0.5],
        any::<u64>(),
    )
        .prop_map(|(temperature, top_k, top_p, min_p, seed)| Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            seed,
            ..Sampling::default()
        })
}

/// A plain reading of the steps: filter, sort, cut, draw. Only a whole row of which nothing is cut is drawn by id.
fn by_full_sort(sampling: &Sampling, logits: &[f32], position: u32, allows: Option<fn(i32) -> bool>) -> Option<i32> {
    let candidates = (0..).zip(logits).map(|(token, &logit)| Candidate { token, logit });
    let mut kept: Vec<Candidate> = candidates
        .filter(|c| allows.is_none_or(|allows| allows(c.token)))
        .collect();
    let cuts = sampling.top_k > 0 || sampling.top_p < 1.0 || sampling.min_p > 0.0;
    let highest = f64::from(kept.iter().map(|c| c.logit).reduce(f32::max)?);
    if sampling.temperature == 0.0 || cuts || allows.is_some() {
        kept.sort_by(ranking::descending);
    }
    if sampling.temperature == 0.0 {
        return Some(kept[0].token);
    }
    let weight = |c: &Candidate| ((f64::from(c.logit) - highest) / f64::from(sampling.temperature)).exp();
    if sampling.top_k > 0 {
        kept.truncate(sampling.top_k as usize);
    }
    if sampling.top_p < 1.0 {
        let wanted = f64::from(sampling.top_p) * kept.iter().map(weight).sum::<f64>();
        let mut sum = 0.0;
        let last = kept.iter().position(|c| {
            sum += weight(c);
            sum >= wanted
        });
        kept.truncate(last.map_or(kept.len(), |last| last + 1));
    }
    if sampling.min_p > 0.0 {
        let first = kept[0];
        kept.retain(|c| weight(c) >= f64::from(sampling.min_p));
        if kept.is_empty() {
            kept.push(first);
        }
    }
    let mut left = uniform(sampling.seed, position) * kept.iter().map(weight).sum::<f64>();
    let drawn = kept.iter().filter(|c| weight(c) > 0.0).find(|c| {
        left -= weight(c);
        left < 0.0
    });
    drawn.or(kept.last()).map(|c| c.token)
}

/// Logits as models give them: a few high, many low; or all alike.
fn logits(length: std::ops::Range<usize>) -> impl Strategy<Value = Vec<f32>> {
    (
        prop_oneof![Just(0.02_f32), Just(0.125), Just(1.0)],
        prop::collection::vec(-60_i16..60, length),
    )
        .prop_map(|(step, logits)| logits.iter().map(|&logit| f32::from(logit) * step).collect())
}

proptest! {
    #[test]
    fn partial_selection_chooses_as_a_full_sort_would(sampling in settings(), logits in logits(1..2000), position: u32) {
        let choice = sampler(&sampling, logits.len()).sample(&mut logits.clone(), position).unwrap();
        prop_assert_eq!(Some(choice.token), by_full_sort(&sampling, &logits, position, None));
    }

    #[test]
    fn asking_the_grammar_late_chooses_as_filtering_first_would(
        sampling in settings(),
        logits in logits(64..2000),
        position: u32,
    ) {
        let choice = constrained(&sampling, logits.len(), |_, token| token % 37 == 5).sample(&mut logits.clone(), position);
        let expected = by_full_sort(&sampling, &logits, position, Some(|token| token % 37 == 5));
        prop_assert_eq!(choice.ok().map(|c| c.token), expected);
    }
}
