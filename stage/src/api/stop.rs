//! Stop strings in a stream of text: found across any cut, never emitted, and the same text whatever the cuts.

/// Looks for stop strings. The string whose last character comes first wins (of those, the longest), which is what
/// makes the outcome independent of how the text was cut into pieces.
#[derive(Debug)]
pub(super) struct StopMatcher {
    stops: Vec<String>,
    /// text that could be the beginning of a stop string
    held: String,
}

/// What a piece of text led to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Matched {
    /// text that may go out
    pub(super) text: String,
    /// a stop string was found: nothing more may go out
    pub(super) stopped: bool,
}

impl StopMatcher {
    /// Looks for any of `stops`, none of them empty.
    pub(super) fn new(stops: Vec<String>) -> StopMatcher {
        StopMatcher {
            stops,
            held: String::new(),
        }
    }

    /// Takes the next piece of text.
    pub(super) fn push(&mut self, text: &str) -> Matched {
        self.held.push_str(text);
        let first = self
            .stops
            .iter()
            .filter_map(|stop| self.held.find(stop).map(|start| (start + stop.len(), start)));
        if let Some((_, start)) = first.min() {
            self.held.truncate(start);
            return Matched {
                text: std::mem::take(&mut self.held),
                stopped: true,
            };
        }
        let held = self.stops.iter().map(|stop| begun(&self.held, stop)).max().unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - held);
        Matched {
            text: std::mem::replace(&mut self.held, kept),
            stopped: false,
        }
    }

    /// Ends the text: what was held back was no stop string.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that are a proper beginning of `marker`.
pub(super) fn begun(text: &str, marker: &str) -> usize {
    marker
        .char_indices()
        .map(|(length, _)| length)
        .filter(|&length| length <= text.len() && text.as_bytes().ends_with(&marker.as_bytes()[..length]))
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let mut under_test = StopMatcher::new(stops.iter().map(ToString::to_string).collect());
        let mut out = Vec::new();
        for piece in pieces {
            let matched = under_test.push(piece);
            out.push(matched.text);
            if matched.stopped {
                return (out, true);
            }
        }
        out.push(under_test.finish());
        (out, false)
    }

    #[test]
    fn a_stop_string_across_pieces_is_never_emitted() {
        assert_eq!(
            run(&["STOP"], &["one S", "TO", "P two"]),
            (vec!["one ".into(), String::new(), String::new()], true)
        );
    }

    #[test]
    fn a_beginning_that_comes_to_nothing_is_let_go() {
        assert_eq!(
            run(&["STOP"], &["one ST", "ART"]),
            (vec!["one ".into(), "START".into(), String::new()], false)
        );
        assert_eq!(run(&["STOP"], &["one ST"]), (vec!["one ".into(), "ST".into()], false));
    }

    #[test]
    fn the_stop_that_ends_first_wins() {
        assert_eq!(run(&["abc", "b"], &["abc"]), (vec!["a".into()], true));
        assert_eq!(
            run(&["abc", "b"], &["a", "b", "c"]),
            (vec![String::new(), "a".into()], true)
        );
        assert_eq!(run(&["bc", "abc"], &["xabc"]), (vec!["x".into()], true));
    }

    /// Text cut at the first moment when what came so far ends with a stop string: the definition.
    fn by_definition(stops: &[String], text: &str) -> (String, bool) {
        for (at, character) in text.char_indices() {
            let so_far = &text[..at + character.len_utf8()];
            if let Some(stop) = stops
                .iter()
                .filter(|stop| so_far.ends_with(*stop))
                .max_by_key(|stop| stop.len())
            {
                return (so_far[..so_far.len() - stop.len()].to_string(), true);
            }
        }
        (text.to_string(), false)
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_text(
            stops in proptest::collection::vec("[abé]{1,4}", 0..4),
            pieces in proptest::collection::vec("[abé]{0,4}", 0..12),
        ) {
            let mut matcher = StopMatcher::new(stops.clone());
            let (mut text, mut stopped) = (String::new(), false);
            for piece in &pieces {
                let matched = matcher.push(piece);
                text += &matched.text;
                stopped = matched.stopped;
                if stopped {
                    break;
                }
            }
            if !stopped {
                text += &matcher.finish();
            }
            prop_assert_eq!((text, stopped), by_definition(&stops, &pieces.concat()));
        }
    }
}
