//! Regular expressions of JSON schemas, written with what llama.cpp knows of them.
//!
//! llama.cpp takes a pattern that it can't express for "any text", and says so on standard error only. So patterns are
//! read here first: what it would pass over is refused, and classes that it doesn't know (`\d`, `\w`, `\s`) are written
//! out. The rules are those of its `_pattern_to_rule`.

/// Deepest nesting of groups.
const MAX_DEPTH: u32 = 64;

const DIGIT: &str = "0-9";
const WORD: &str = "A-Za-z0-9_";
/// What of it may stand in a JSON string without an escape.
const SPACE: &str = " ";
/// What a JSON string holds with an escape only: no class that says what it doesn't hold may let it in.
const ESCAPED: &str = "\"\\\\\\x7F\\x00-\\x1F";

/// The pattern as llama.cpp understands it.
///
/// # Errors
/// Why it is no regular expression, or which part of it no grammar of llama.cpp's can express.
pub(crate) fn translate(pattern: &str) -> Result<String, String> {
    let begun = pattern.strip_prefix('^');
    let rest = begun.unwrap_or(pattern);
    // a dollar sign that is escaped is no end
    let escaped = |inner: &&str| inner.bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 1;
    let ended = rest.strip_suffix('$').filter(|inner| !escaped(inner));
    // what is no regular expression at all is told first
    let inner = Reader::new(ended.unwrap_or(rest)).read()?;
    if begun.is_none() || ended.is_none() {
        return Err("it must begin with ^ and end with $, so that it speaks of the whole text".to_owned());
    }
    Ok(format!("^{inner}$"))
}

struct Reader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    out: String,
    depth: u32,
    /// something stands before that can be repeated
    repeatable: bool,
    /// what is a regular expression, but none that a grammar can express; told unless something worse comes
    inexpressible: Option<String>,
}

impl<'a> Reader<'a> {
    fn new(pattern: &'a str) -> Self {
        Reader {
            rest: pattern.chars().peekable(),
            out: String::new(),
            depth: 0,
            repeatable: false,
            inexpressible: None,
        }
    }

    fn read(mut self) -> Result<String, String> {
        while let Some(character) = self.rest.next() {
            match character {
                '\\' => self.escape()?,
                '[' => self.class()?,
                '(' => self.open()?,
                ')' => {
                    self.depth = self.depth.checked_sub(1).ok_or("a ) closes nothing")?;
                    self.out.push(')');
                    self.repeatable = true;
                }
                '|' => {
                    self.out.push('|');
                    self.repeatable = false;
                }
                '*' | '+' | '?' => self.repeat(&character.to_string())?,
                '{' => self.times()?,
                '^' | '$' => self.cannot("an anchor within it"),
                '.' => self.part(&format!("[^{ESCAPED}]")),
                ']' | '}' => self.cannot(&format!("a bare {character} (write \\{character})")),
                other => self.literal(other),
            }
        }
        if self.depth > 0 {
            return Err("a ( is not closed".to_owned());
        }
        match self.inexpressible {
            Some(what) => Err(format!("no grammar expresses {what}")),
            None => Ok(self.out),
        }
    }

    fn cannot(&mut self, what: &str) {
        self.inexpressible.get_or_insert_with(|| what.to_owned());
        self.repeatable = true;
    }

    fn part(&mut self, text: &str) {
        self.out.push_str(text);
        self.repeatable = true;
    }

    fn literal(&mut self, character: char) {
        if needs_escape(character) {
            self.cannot("characters that JSON escapes");
        } else if "^$.[]()|{}*+?".contains(character) {
            // llama.cpp takes these for the signs themselves
            self.part(&format!("\\{character}"));
        } else {
            self.part(character.encode_utf8(&mut [0; 4]));
        }
    }

    fn open(&mut self) -> Result<(), String> {
        if self.depth == MAX_DEPTH {
            return Err(format!("groups nest deeper than {MAX_DEPTH}"));
        }
        self.depth += 1;
        self.out.push('(');
        if self.rest.next_if_eq(&'?').is_some() {
            if self.rest.next_if_eq(&':').is_none() {
                self.cannot("groups that begin with (?, except (?:");
            }
            self.out.push_str("?:");
        }
        self.repeatable = false;
        Ok(())
    }

    fn repeat(&mut self, sign: &str) -> Result<(), String> {
        if !std::mem::take(&mut self.repeatable) {
            return Err(format!("there is nothing for {sign} to repeat"));
        }
        self.out.push_str(sign);
        // a lazy repetition finds another text, but a whole text satisfies it just the same
        self.rest.next_if_eq(&'?');
        Ok(())
    }

    /// `{3}`, `{3,}`, `{3,5}`
    fn times(&mut self) -> Result<(), String> {
        let mut inside = String::new();
        loop {
            match self.rest.next() {
                Some('}') => break,
                Some(character) if character.is_ascii_digit() || character == ',' => inside.push(character),
                _ => return Err("a { is not followed by numbers and a } (write \\{ for the sign itself)".to_owned()),
            }
        }
        let number = |text: &str| text.parse::<u32>().ok();
        let bounds = match inside.split_once(',') {
            None => number(&inside).map(|times| (times, Some(times))),
            Some((least, "")) => number(least).map(|least| (least, None)),
            Some((least, most)) => number(least).zip(number(most)).map(|(least, most)| (least, Some(most))),
        };
        match bounds {
            None => Err(format!("{{{inside}}} is no number of repetitions")),
            Some((least, Some(most))) if most < least => {
                Err(format!("{{{inside}}} has its bounds the wrong way round"))
            }
            Some(_) => self.repeat(&format!("{{{inside}}}")),
        }
    }

    fn escape(&mut self) -> Result<(), String> {
        let escaped = self.rest.next().ok_or("it ends with a single backslash")?;
        match escaped {
            'd' => self.part(&format!("[{DIGIT}]")),
            'D' => self.part(&format!("[^{DIGIT}{ESCAPED}]")),
            'w' => self.part(&format!("[{WORD}]")),
            'W' => self.part(&format!("[^{WORD}{ESCAPED}]")),
            's' => self.part(&format!("[{SPACE}]")),
            'S' => self.part(&format!("[^{SPACE}{ESCAPED}]")),
            'x' => self.code(2)?,
            'u' => self.code(4)?,
            sign if sign.is_ascii_punctuation() || sign == ' ' => self.literal(sign),
            other => {
                if other.eq_ignore_ascii_case(&'p') && self.rest.next_if_eq(&'{').is_some() {
                    // the name of a property, and no number of repetitions
                    self.rest.by_ref().find(|&character| character == '}');
                }
                self.cannot(&format!("\\{other}"));
            }
        }
        Ok(())
    }

    /// A character by its number.
    fn code(&mut self, digits: usize) -> Result<(), String> {
        let code: String = (0..digits)
            .filter_map(|_| self.rest.next_if(char::is_ascii_hexdigit))
            .collect();
        if code.len() < digits {
            return Err(format!("{digits} hexadecimal digits must follow \\x or \\u"));
        }
        match u32::from_str_radix(&code, 16).ok().and_then(char::from_u32) {
            Some(character) => self.literal(character),
            None => self.cannot("half a surrogate pair"),
        }
        Ok(())
    }

    fn class(&mut self) -> Result<(), String> {
        self.out.push('[');
        let negated = self.rest.next_if_eq(&'^').is_some();
        if negated {
            self.out.push('^');
        }
        let mut empty = true;
        // the character before, where a range may begin with it, and whether one has begun
        let (mut before, mut ranging) = (None, false);
        loop {
            let character = self.rest.next().ok_or("a [ is not closed")?;
            let single = match character {
                ']' => break,
                '[' => {
                    self.out.push_str("\\[");
                    Some('[')
                }
                '\\' => self.class_escape()?,
                '-' if before.is_some() && !ranging && self.rest.peek().is_some_and(|next| *next != ']') => {
                    self.out.push('-');
                    ranging = true;
                    continue;
                }
                '-' => {
                    self.out.push_str("\\-");
                    Some('-')
                }
                other if needs_escape(other) => {
                    self.cannot("characters that JSON escapes");
                    Some(other)
                }
                other => {
                    self.out.push(other);
                    Some(other)
                }
            };
            if std::mem::take(&mut ranging) {
                match (before, single) {
                    (Some(first), Some(last)) if first <= last => before = None,
                    _ => return Err("a range in [ ] has its ends the wrong way round".to_owned()),
                }
            } else {
                before = single;
            }
            empty = false;
        }
        if empty {
            return Err("[ ] holds no character".to_owned());
        }
        if negated {
            self.out.push_str(ESCAPED);
        }
        self.out.push(']');
        self.repeatable = true;
        Ok(())
    }

    /// The character that it stands for; none for a whole class.
    fn class_escape(&mut self) -> Result<Option<char>, String> {
        let escaped = self.rest.next().ok_or("a [ is not closed")?;
        match escaped {
            'd' => self.out.push_str(DIGIT),
            'w' => self.out.push_str(WORD),
            's' => self.out.push_str(SPACE),
            '[' | ']' | '-' => {
                self.out.extend(['\\', escaped]);
                return Ok(Some(escaped));
            }
            sign if sign.is_ascii_punctuation() && !needs_escape(sign) => {
                self.out.push(sign);
                return Ok(Some(sign));
            }
            other => self.cannot(&format!("\\{other} in [ ]")),
        }
        Ok(None)
    }
}

/// Characters that stand in a JSON string with an escape only, which a grammar made of the pattern would leave out.
fn needs_escape(character: char) -> bool {
    matches!(character, '"' | '\\') || character.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_llama_cpp_knows_stays_and_classes_are_written_out() {
        for (pattern, translated) in [
            ("^abc$", "^abc$"),
            ("^$", "^$"),
            ("^a*b+c?d{2}e{2,}f{2,3}$", "^a*b+c?d{2}e{2,}f{2,3}$"),
            (r"^(ab|cd)(?:ef)+$", r"^(ab|cd)(?:ef)+$"),
            (r"^\(\d{3}\)$", r"^\([0-9]{3}\)$"),
            (r"^[\d.\-_]\w$", r"^[0-9.\-_][A-Za-z0-9_]$"),
            (r"^[a-c-]$", r"^[a-c\-]$"),
            (r"^[[]$", r"^[\[]$"),
            (r"^\d{4}-\d{2}-\d{2}$", "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"),
            (r"^a\/b\-c$", "^a/b-c$"),
            ("^ü.$", r#"^ü[^"\\\x7F\x00-\x1F]$"#),
            (r"^[^a]\D$", r#"^[^a"\\\x7F\x00-\x1F][^0-9"\\\x7F\x00-\x1F]$"#),
            (r"^\x41\u00e9\x2e$", r"^Aé\.$"),
            ("^a*?$", "^a*$"),
        ] {
            assert_eq!(translate(pattern).as_deref(), Ok(translated), "{pattern}");
        }
    }

    #[test]
    fn what_is_no_regular_expression_is_told() {
        for (pattern, told) in [
            ("[", "a [ is not closed"),
            ("^[a-$", "a [ is not closed"),
            ("^(a$", "a ( is not closed"),
            ("^a)$", "a ) closes nothing"),
            ("*", "there is nothing for * to repeat"),
            ("^a|+$", "there is nothing for + to repeat"),
            ("^a{3,1}$", "{3,1} has its bounds the wrong way round"),
            ("^a{}$", "{} is no number of repetitions"),
            (
                "^a{x}$",
                "a { is not followed by numbers and a } (write \\{ for the sign itself)",
            ),
            ("^[z-a]$", "a range in [ ] has its ends the wrong way round"),
            ("^[]$", "[ ] holds no character"),
            ("a\\", "it ends with a single backslash"),
            ("^a**$", "there is nothing for * to repeat"),
        ] {
            assert_eq!(translate(pattern).unwrap_err(), told, "{pattern}");
        }
    }

    #[test]
    fn what_a_grammar_cannot_express_is_told() {
        let whole = "it must begin with ^ and end with $, so that it speaks of the whole text";
        for (pattern, told) in [
            ("abc", whole),
            ("^abc", whole),
            (r"^abc\$", whole),
            ("", whole),
            ("^(?=a)b$", "no grammar expresses groups that begin with (?, except (?:"),
            (r"^(a)\1$", r"no grammar expresses \1"),
            (r"^\bword\b$", r"no grammar expresses \b"),
            (r"^\p{L}$", r"no grammar expresses \p"),
            ("^a$|^b$", "no grammar expresses an anchor within it"),
            (r#"^"$"#, "no grammar expresses characters that JSON escapes"),
            (r#"^["]$"#, "no grammar expresses characters that JSON escapes"),
            (r"^\\$", "no grammar expresses characters that JSON escapes"),
            (r"^a\n$", r"no grammar expresses \n"),
            ("^a]$", "no grammar expresses a bare ] (write \\])"),
        ] {
            assert_eq!(translate(pattern).unwrap_err(), told, "{pattern}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic_and_what_it_gives_is_stable(pattern in r"\PC{0,40}|[\^$()\[\]{}*+?|\\a-d0-9,:.-]{0,24}") {
            if let Ok(once) = translate(&pattern) {
                let again = translate(&once);
                // a negated class gains what JSON escapes each time; all else stays
                if !once.contains("[^") {
                    proptest::prop_assert_eq!(again.as_ref(), Ok(&once));
                }
            }
        }
    }
}
