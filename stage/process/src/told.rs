//! Errors as text.

use std::error::Error;

/// An error and its causes on one line. A cause that the text before it ends with is not said again: transparent errors
/// repeat theirs.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let told = cause.to_string();
        if !text.ends_with(&told) {
            text.push_str(": ");
            text.push_str(&told);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::chain;

    #[derive(Debug, thiserror::Error)]
    #[error("the disk is full")]
    struct Full;

    #[derive(Debug, thiserror::Error)]
    enum Write {
        #[error("the window can't be written")]
        Window(#[source] Full),
        #[error(transparent)]
        Full(#[from] Full),
        #[error("the file can't be written: {0}")]
        File(#[source] Full),
    }

    #[test]
    fn each_cause_is_told_once() {
        assert_eq!(
            chain(&Write::Window(Full)),
            "the window can't be written: the disk is full"
        );
        assert_eq!(chain(&Write::Full(Full)), "the disk is full");
        assert_eq!(chain(&Write::File(Full)), "the file can't be written: the disk is full");
    }
}
