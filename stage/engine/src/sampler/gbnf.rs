//! Reads a GBNF grammar before llama.cpp does: its parser says what is wrong on standard error only, runs away on
//! `{5,2}`, and recurses as deep as the text nests. The syntax is that of llama.cpp's `llama_grammar_parser`.

use super::ways::{self, Alternatives, MAX_WAYS, Part, What};
use std::collections::HashMap;

/// Longest grammar.
const MAX_BYTES: usize = 1 << 20;
/// Deepest nesting of groups.
const MAX_DEPTH: u32 = 64;
/// Most rules, those that repetitions and groups make included.
const MAX_SYMBOLS: u64 = 20_000;
/// llama.cpp's `MAX_REPETITION_THRESHOLD`.
const MAX_REPETITION: u64 = 2000;

/// Checks a grammar; `is_token` says whether a text like `<end>` is one token. The fault names line and column.
pub(crate) fn check(text: &str, is_token: &dyn Fn(&str) -> bool) -> Result<(), String> {
    if text.len() > MAX_BYTES {
        return Err(format!("it is longer than {MAX_BYTES} bytes"));
    }
    let mut reader = Reader {
        text,
        at: 0,
        is_token,
        depth: 0,
        rules: HashMap::new(),
        names: HashMap::new(),
        symbols: 0,
    };
    reader.space(true);
    while reader.peek().is_some() {
        reader.rule()?;
    }
    if let Some((name, &at)) = reader
        .names
        .iter()
        .filter(|(name, _)| !reader.rules.contains_key(*name))
        .min_by_key(|(_, at)| **at)
    {
        return Err(reader.fault_at(at, &format!("rule {name} is not defined")));
    }
    if !reader.rules.contains_key("root") {
        return Err("it has no rule root".to_owned());
    }
    if ways::most(&reader.rules) > MAX_WAYS {
        return Err(format!(
            "at one place the text may go on in more than {MAX_WAYS} ways: list fewer alternatives, and not the same ones twice"
        ));
    }
    Ok(())
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    is_token: &'a dyn Fn(&str) -> bool,
    depth: u32,
    /// what was read
    rules: HashMap<&'a str, Alternatives<'a>>,
    /// names and where they first stand
    names: HashMap<&'a str, usize>,
    /// names, and rules that llama.cpp makes
    symbols: u64,
}

/// What a repetition would repeat: the rules that llama.cpp makes for it and what it is, or nothing.
type Item<'a> = Option<(u64, What<'a>)>;

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.text[self.at..].starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.eat(token) {
            Ok(())
        } else {
            Err(self.fault(&format!("{token} is expected")))
        }
    }

    fn fault(&self, what: &str) -> String {
        self.fault_at(self.at, what)
    }

    fn fault_at(&self, at: usize, what: &str) -> String {
        let before = &self.text[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or(before).chars().count() + 1;
        format!("line {line}, column {column}: {what}")
    }

    /// Blanks and comments; `lines` lets it go on to further lines.
    fn space(&mut self, lines: bool) {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' => self.at += 1,
                b'\r' | b'\n' if lines => self.at += 1,
                b'#' => {
                    self.while_byte(|byte| byte != b'\r' && byte != b'\n');
                }
                _ => break,
            }
        }
    }

    fn while_byte(&mut self, is: impl Fn(u8) -> bool) -> &'a str {
        let rest = &self.text[self.at..];
        let length = rest.bytes().position(|byte| !is(byte)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    fn name(&mut self) -> Result<&'a str, String> {
        let at = self.at;
        let name = self.while_byte(is_word);
        if name.is_empty() {
            return Err(self.fault("a rule's name is expected"));
        }
        if !self.names.contains_key(name) {
            self.names.insert(name, at);
            self.symbol(1)?;
        }
        Ok(name)
    }

    fn symbol(&mut self, count: u64) -> Result<(), String> {
        self.symbols = self.symbols.saturating_add(count);
        if self.symbols > MAX_SYMBOLS {
            Err(self.fault("the grammar is too big: too many rules and repetitions"))
        } else {
            Ok(())
        }
    }

    fn rule(&mut self) -> Result<(), String> {
        let name = self.name()?;
        self.space(false);
        self.expect("::=")?;
        self.space(true);
        let alternatives = self.alternates(false)?;
        self.rules.insert(name, alternatives);
        match self.peek() {
            None | Some(b'\r' | b'\n') => self.space(true),
            Some(_) => return Err(self.fault("a new line is expected")),
        }
        Ok(())
    }

    fn alternates(&mut self, nested: bool) -> Result<Alternatives<'a>, String> {
        let mut alternatives = vec![self.sequence(nested)?];
        while self.eat("|") {
            self.space(true);
            alternatives.push(self.sequence(nested)?);
        }
        Ok(alternatives)
    }

    fn sequence(&mut self, nested: bool) -> Result<Vec<Part<'a>>, String> {
        let mut parts = Vec::new();
        let mut item: Item<'a> = None;
        while let Some(byte) = self.peek() {
            item = match byte {
                b'*' | b'+' | b'?' | b'{' => self.repetition(item.take(), &mut parts, nested)?,
                _ => {
                    let next = match byte {
                        b'"' => self.literal()?,
                        b'[' => self.class()?,
                        b'<' | b'!' => self.token()?,
                        b'(' => self.group()?,
                        b'.' => {
                            self.at += 1;
                            Some((1, What::Terminal))
                        }
                        byte if is_word(byte) => Some((1, What::Rule(self.name()?))),
                        _ => break,
                    };
                    if let Some((_, what)) = &next {
                        parts.push(Part {
                            what: what.clone(),
                            optional: false,
                        });
                    }
                    next
                }
            };
            self.space(nested);
        }
        Ok(parts)
    }

    fn literal(&mut self) -> Result<Item<'a>, String> {
        self.at += 1;
        let mut item = None;
        while !self.eat("\"") {
            self.character()?;
            item = Some((1, What::Terminal));
        }
        Ok(item)
    }

    fn class(&mut self) -> Result<Item<'a>, String> {
        self.at += 1;
        self.eat("^");
        let mut item = None;
        while !self.eat("]") {
            self.character()?;
            if self.peek() == Some(b'-') && self.text.as_bytes().get(self.at + 1) != Some(&b']') {
                self.at += 1;
                self.character()?;
            }
            item = Some((1, What::Terminal));
        }
        Ok(item)
    }

    /// One character of a literal or class, escaped or not.
    fn character(&mut self) -> Result<(), String> {
        let mut rest = self.text[self.at..].chars();
        match (rest.next(), rest.next()) {
            (None, _) => Err(self.fault("the text ends within a literal or a class")),
            (Some('\\'), escape) => {
                let digits = match escape {
                    Some('x') => 2,
                    Some('u') => 4,
                    Some('U') => 8,
                    Some('t' | 'r' | 'n' | '\\' | '"' | '[' | ']' | '-') => 0,
                    _ => return Err(self.fault("an unknown escape")),
                };
                let hex = self.text.as_bytes().get(self.at + 2..self.at + 2 + digits);
                if !hex.is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) {
                    return Err(self.fault(&format!("{digits} hexadecimal digits are expected")));
                }
                self.at += 2 + digits;
                Ok(())
            }
            (Some(character), _) => {
                self.at += character.len_utf8();
                Ok(())
            }
        }
    }

    /// `<[id]>` or `<text>`, after an optional `!`.
    fn token(&mut self) -> Result<Item<'a>, String> {
        self.eat("!");
        let start = self.at;
        self.expect("<")?;
        if self.eat("[") {
            let digits = self.while_byte(|byte| byte.is_ascii_digit());
            if digits.parse::<u32>().is_err() {
                return Err(self.fault("a token's number is expected"));
            }
            self.expect("]>")?;
        } else {
            self.at += self.text[self.at..]
                .find('>')
                .ok_or_else(|| self.fault("the text ends before >"))?
                + 1;
            let token = &self.text[start..self.at];
            if !(self.is_token)(token) {
                return Err(self.fault_at(start, &format!("{token} is not one token of the vocabulary")));
            }
        }
        Ok(Some((1, What::Terminal)))
    }

    fn group(&mut self) -> Result<Item<'a>, String> {
        if self.depth == MAX_DEPTH {
            return Err(self.fault(&format!("groups nest deeper than {MAX_DEPTH}")));
        }
        self.at += 1;
        self.depth += 1;
        self.space(true);
        let before = self.symbols;
        self.symbol(1)?;
        let alternatives = self.alternates(true)?;
        self.expect(")")?;
        self.depth -= 1;
        Ok(Some((self.symbols - before, What::Group(alternatives))))
    }

    /// Repeats the last of `parts`, which is `item`.
    fn repetition(&mut self, item: Item<'a>, parts: &mut Vec<Part<'a>>, nested: bool) -> Result<Item<'a>, String> {
        let start = self.at;
        let (least, most) = self.bounds(nested)?;
        let (item, what) = item.ok_or_else(|| self.fault_at(start, "there is nothing to repeat"))?;
        if most.is_some_and(|most| most < least) {
            return Err(self.fault_at(start, "the highest number of repetitions is below the lowest"));
        }
        // llama.cpp takes a high upper bound as none
        let most = most.filter(|&most| most <= MAX_REPETITION);
        let times = most.unwrap_or(least).max(1);
        let rules = item.saturating_mul(times);
        if least > MAX_REPETITION || rules > MAX_REPETITION {
            return Err(self.fault_at(start, &format!("that makes more than {MAX_REPETITION} repetitions")));
        }
        self.symbol(most.map_or(1, |most| most - least))?;
        if least == 0
            && let Some(part) = parts.last_mut()
        {
            part.optional = true;
        } else if most != Some(least) {
            // after those that must be there, one more or what follows
            parts.push(Part {
                what: what.clone(),
                optional: true,
            });
        }
        Ok((most != Some(0)).then_some((rules, what)))
    }

    /// Least and most repetitions of `*`, `+`, `?` or `{…}`.
    fn bounds(&mut self, nested: bool) -> Result<(u64, Option<u64>), String> {
        if self.eat("*") {
            return Ok((0, None));
        }
        if self.eat("+") {
            return Ok((1, None));
        }
        if self.eat("?") {
            return Ok((0, Some(1)));
        }
        self.expect("{")?;
        self.space(nested);
        let least = self.number()?;
        self.space(nested);
        if self.eat("}") {
            return Ok((least, Some(least)));
        }
        self.expect(",")?;
        self.space(nested);
        let most = if self.peek() == Some(b'}') {
            None
        } else {
            Some(self.number()?)
        };
        self.space(nested);
        self.expect("}")?;
        Ok((least, most))
    }

    fn number(&mut self) -> Result<u64, String> {
        let digits = self.while_byte(|byte| byte.is_ascii_digit());
        digits.parse().map_err(|_| self.fault("a number is expected"))
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(grammar: &str) -> String {
        check(grammar, &|token| token == "<end>").unwrap_err()
    }

    #[test]
    fn ordinary_grammars_pass() {
        for grammar in [
            r#"root ::= "a""#,
            "root ::= item+ # comment\nitem ::= \"- \" [^\\n]* \"\\n\"\r\n",
            "root ::= (\n  \"a\" |\n  [b-d]{2,4}\n)? ws\nws ::= | \" \" ws\n",
            "root ::= !<[3]> <end> . \"\\x41\\u00e9\\U0001F600\"{3}",
            "root ::= [a-] [\\]\\-]* [^] []",
        ] {
            assert_eq!(check(grammar, &|token| token == "<end>"), Ok(()), "{grammar}");
        }
    }

    #[test]
    fn faults_name_their_place() {
        assert_eq!(fault("root ::= \"a\"\nb := \"c\""), "line 2, column 3: ::= is expected");
        assert_eq!(fault("root ::= (\"a\""), "line 1, column 14: ) is expected");
        assert_eq!(
            fault("root ::= \"a"),
            "line 1, column 12: the text ends within a literal or a class"
        );
        assert_eq!(fault("root ::= \"\\q\""), "line 1, column 11: an unknown escape");
        assert_eq!(
            fault("root ::= a\na ::= b c\nb ::= \"é\" d"),
            "line 2, column 9: rule c is not defined"
        );
        assert_eq!(fault("root ::= *"), "line 1, column 10: there is nothing to repeat");
        assert_eq!(
            fault("root ::= <begin>"),
            "line 1, column 10: <begin> is not one token of the vocabulary"
        );
        assert_eq!(fault("a ::= \"a\""), "it has no rule root");
        assert_eq!(fault(""), "it has no rule root");
    }

    #[test]
    fn grammars_that_run_away_are_refused() {
        assert_eq!(
            fault("root ::= \"a\"{5,2}"),
            "line 1, column 13: the highest number of repetitions is below the lowest"
        );
        assert_eq!(
            fault("root ::= \"a\"{0,2000}{2}"),
            "line 1, column 21: that makes more than 2000 repetitions"
        );
        assert_eq!(
            fault("root ::= \"a\"{2001}"),
            "line 1, column 13: that makes more than 2000 repetitions"
        );
        let deep = format!("root ::= {}\"a\"{}", "(".repeat(100), ")".repeat(100));
        assert_eq!(fault(&deep), "line 1, column 74: groups nest deeper than 64");
        let many = "a ::= \"b\"{0,1999}\n".repeat(11);
        assert!(fault(&many).ends_with("the grammar is too big: too many rules and repetitions"));
    }

    #[test]
    fn grammars_that_leave_too_many_ways_open_are_refused() {
        let too_many = "at one place the text may go on in more than 512 ways: list fewer alternatives, and not the same ones twice";
        let doubling = |depth: u32| {
            let rules = (1..=depth).map(|rule| format!("a{rule} ::= a{before} | a{before}\n", before = rule - 1));
            format!("root ::= \"(\" a{depth}\na0 ::= \"x\"\n{}", rules.collect::<String>())
        };
        assert_eq!(fault(&doubling(40)), too_many);
        assert_eq!(fault(&doubling(10)), too_many);
        assert_eq!(check(&doubling(9), &|_| false), Ok(()), "512 ways");
        let optional = |members: u32| format!("root ::= {}\"z\"", "\"x\"? ".repeat(members as usize));
        assert_eq!(check(&optional(511), &|_| false), Ok(()));
        assert_eq!(fault(&optional(512)), too_many);
        assert_eq!(
            fault(&format!("root ::= ({})+ \"z\"", "\"x\" | ".repeat(511) + "\"y\"")),
            too_many
        );
        let chain = "root ::= a \"z\"\na ::= \"x\" a | \"y\"\n";
        assert_eq!(check(chain, &|_| false), Ok(()), "a rule may go on with itself");
    }
}
