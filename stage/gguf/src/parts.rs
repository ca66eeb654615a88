//! Names of the parts of a split GGUF: `NAME-00001-of-00003.gguf`.

/// The names of all parts of the model that `name` is a part of, in order; just `name` when it is no part.
///
/// `name` may be a path or a URL path: only its end is looked at. Names count from 1 (`split.no` inside the file from 0).
pub fn part_names(name: &str) -> Vec<String> {
    match split(name) {
        Some((stem, parts)) => (1..=parts)
            .map(|part| format!("{stem}-{part:05}-of-{parts:05}.gguf"))
            .collect(),
        None => vec![name.to_owned()],
    }
}

/// Stem and number of parts, when `name` ends like `-%05d-of-%05d.gguf`.
fn split(name: &str) -> Option<(&str, u32)> {
    let number = |digits: &str| {
        (digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit()))
            .then(|| digits.parse::<u32>().ok())
            .flatten()
    };
    let (rest, parts) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let (part, parts) = (number(part)?, number(parts)?);
    (1..=parts).contains(&part).then_some((stem, parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a5_parts_are_found_from_any_part() {
        let parts = [
            "m-00001-of-00003.gguf",
            "m-00002-of-00003.gguf",
            "m-00003-of-00003.gguf",
        ];
        for part in parts {
            assert_eq!(part_names(part), parts);
        }
        assert_eq!(
            part_names("dir/m-1-00002-of-00002.gguf")[0],
            "dir/m-1-00001-of-00002.gguf"
        );
    }

    #[test]
    fn a5_a_name_that_only_looks_like_a_part_is_one_file() {
        for name in [
            "best-of-breed.gguf",
            "m-2-of-3.gguf",
            "m-00004-of-00003.gguf",
            "m-00000-of-00003.gguf",
            "m.gguf",
        ] {
            assert_eq!(part_names(name), [name]);
        }
    }
}
