//! One model, cut wherever it may be, its windows run one after the other beside the whole.

use std::collections::HashMap;
use std::path::Path;

use kvasir_engine::{Backend, Embedder, EngineError, Output, Span, Whole, Window, WindowOptions};
use kvasir_gguf::{Model, WindowRole, arch, window};
use kvasir_plan::{Device, Error, LayerRange, ModelProfile, Placement, Request, WindowHolder, plan};
use kvasir_tests::random_model::{Architecture, RandomModel};
use tempfile::TempDir;

use crate::support::{assert_same_bits, cut, logits, span, vocabulary_file};

/// Sequences of a context.
const SLOTS: u32 = 3;
/// Cuts into three windows that are tried.
const THREE: usize = 10;
/// A batch: which slots, and how many tokens of each.
type Batch<'a> = &'a [(u32, u32)];
/// A prompt in two slices, another prompt, decodes together, unequal lengths, a gap between slots.
const MANY: [Batch<'_>; 6] = [
    &[(0, 30)],
    &[(0, 5)],
    &[(2, 17)],
    &[(2, 1), (0, 1)],
    &[(1, 3), (0, 2), (2, 2)],
    &[(0, 1), (1, 1), (2, 1)],
];
/// The windows that all of [`MANY`] go through.
const MANY_CUTS: [u32; 3] = [1, 3, 5];
/// Prefill beyond a sliding window, and decode, for all other cuts.
const FEW: [Batch<'_>; 4] = [&[(0, 20)], &[(1, 3)], &[(0, 1), (1, 1)], &[(0, 2)]];

/// A random model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) architecture: Architecture,
    /// with an MTP layer behind the trunk
    pub(crate) mtp: bool,
    /// without an output head of its own
    pub(crate) tied: bool,
    /// in place of the usual number of layers
    pub(crate) layers: Option<u32>,
}

impl Case {
    /// Name and variant.
    pub(crate) fn label(self) -> String {
        let mut parts = vec![self.architecture.label().to_owned()];
        if self.mtp {
            parts.push("MTP".to_owned());
        }
        if self.tied {
            parts.push("tied head".to_owned());
        }
        if let Some(layers) = self.layers {
            parts.push(format!("{layers} layers"));
        }
        parts.join(", ")
    }

    fn model(self) -> RandomModel {
        let layers = self.layers.unwrap_or_else(|| self.architecture.default_layers());
        let model = RandomModel::new(self.architecture)
            .layers(layers)
            .mtp_layers(self.mtp.into());
        if self.tied { model.tied() } else { model }
    }
}

/// What was shown of a model.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) case: Case,
    /// layers of its trunk
    pub(crate) layers: u32,
    /// cuts into two windows whose logits equal the whole model's
    pub(crate) two: Vec<u32>,
    /// cuts into three windows of which the same holds
    pub(crate) three: Vec<[u32; 2]>,
    /// cuts into two windows that are refused, and why
    pub(crate) refused: Vec<(u32, String)>,
}

/// Tries every cut into two windows and a sample of those into three.
pub(crate) fn show(backend: &Backend, case: Case) -> Shown {
    let label = case.label();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    case.model().write(&path).unwrap();
    let model = Model::open(&path).unwrap();
    let layers = model.layers();
    let profile = ModelProfile::of(&model).unwrap_or_else(|refused| panic!("{label}: {refused}"));
    let mut whole = Whole::load(backend, &path, &options()).unwrap();
    let mut windows = Windows::new(backend, &path, layers);

    several_sequences(&mut whole, &mut windows, case);
    let steps = steps(&FEW);
    (0..SLOTS).for_each(|slot| whole.clear(slot));
    let expected: Vec<Vec<f32>> = steps.iter().map(|step| step.on(&mut whole)).collect();
    assert!(expected.iter().flatten().any(|logit| *logit != 0.0), "{label}");
    let mut equals_the_whole = |cuts: &[u32]| {
        windows.clear(cuts);
        for (number, (step, expected)) in steps.iter().zip(&expected).enumerate() {
            let what = format!("{label}, cut at {cuts:?}, batch {number}");
            assert_same_bits(expected, &windows.logits(cuts, step), &what);
        }
    };

    let (mut two, mut refused) = (Vec::new(), Vec::new());
    for at in 1..layers {
        match (planned(&profile, &[at]), Wrong::of(&model, at)) {
            (Ok(()), None) => {
                equals_the_whole(&[at]);
                two.push(at);
            }
            (Err(error), Some(wrong)) => refused.push((at, wrong.words(&model, at, &error))),
            (verdict, wrong) => panic!("{label}, cut at {at}: {verdict:?} of the planner, and wrong is {wrong:?}"),
        }
    }
    let three = sample(&two, label.len() as u64);
    for cuts in &three {
        planned(&profile, cuts).unwrap_or_else(|refused| panic!("{label}, cut at {cuts:?}: {refused}"));
        equals_the_whole(cuts);
    }
    Shown {
        case,
        layers,
        two,
        three,
        refused,
    }
}

fn options() -> WindowOptions {
    WindowOptions {
        context_length: 256,
        sequences: SLOTS,
        max_rows: 40,
        threads: 1,
        output: Output::Logits { max_rows: 8 },
        ..WindowOptions::default()
    }
}

/// Whether the planner takes these windows.
pub(crate) fn planned(profile: &ModelProfile, cuts: &[u32]) -> Result<(), Error> {
    let device = Device {
        name: "here".to_owned(),
        placement: Placement::Inside,
        max_stages: 64,
        memory: 1 << 40,
        decode: 1 << 30,
        prefill: 1 << 30,
        latency: std::time::Duration::ZERO,
        bandwidth: 1 << 30,
    };
    let request = Request {
        context_length: 256,
        windows: bounds(cuts, profile.layer_count())
            .into_iter()
            .map(|(start, end)| kvasir_plan::Window {
                layers: LayerRange { start, end },
                holder: WindowHolder::Any,
            })
            .collect(),
        ..Request::default()
    };
    plan(profile, &[device], &request).map(|_| ())
}

fn bounds(cuts: &[u32], layers: u32) -> Vec<(u32, u32)> {
    let starts = [0].into_iter().chain(cuts.iter().copied());
    starts.zip(cuts.iter().copied().chain([layers])).collect()
}

/// What is wrong with a last window, told by the tensors alone.
#[derive(Debug)]
enum Wrong {
    /// a hybrid model's window without one of the kinds
    Lacks(&'static str),
    /// as long as a light model of the same architecture, which has other tensors
    Light,
}

impl Wrong {
    fn of(model: &Model, start: u32) -> Option<Wrong> {
        let is_recurrent = |layer: u32| {
            let mut tensors = model.tensors_of_layer(layer);
            tensors.any(|tensor| tensor.name.contains(".ssm_") || tensor.name.contains(".shortconv."))
        };
        let count = |from: u32| (from..model.layers()).filter(|layer| is_recurrent(*layer)).count() as u32;
        let length = model.layers() - start;
        match (count(0), count(start)) {
            (0, _) => {}
            (_, 0) => return Some(Wrong::Lacks("recurrent")),
            (_, some) if some == length => return Some(Wrong::Lacks("full-attention")),
            _ => {}
        }
        let compressed = model.tensor("blk.0.attn_q_a.weight").is_some();
        (compressed && matches!(length, 26 | 27)).then_some(Wrong::Light)
    }

    /// Planner and cutter both refuse, and both say why.
    fn words(&self, model: &Model, at: u32, planner: &Error) -> String {
        let role = WindowRole {
            layers: at..model.layers(),
            last: true,
        };
        let cutter = window::window(model, &role).unwrap_err();
        let (cutter, planner, reason) = (cutter.to_string(), planner.to_string(), planner.reason());
        assert_eq!(reason, "InvalidPlan", "{planner}");
        assert!(
            planner.contains(&format!("the last window starts at layer {at}")),
            "{planner}"
        );
        match self {
            Wrong::Lacks(kind) => {
                assert!(cutter.contains(&format!("has no {kind} layer")), "{cutter}");
                format!("the last window would have no {kind} layer")
            }
            Wrong::Light => {
                assert!(planner.contains("for another model"), "{planner}");
                assert!(cutter.contains("light"), "{cutter}");
                "llama.cpp would take the last window for a light model".to_owned()
            }
        }
    }
}

/// Up to ten cuts into three windows, made of sound cuts into two, the same ones for the same seed.
fn sample(sound: &[u32], seed: u64) -> Vec<[u32; 2]> {
    let mut pairs: Vec<[u32; 2]> = (1..sound.len())
        .flat_map(|second| (0..second).map(move |first| [sound[first], sound[second]]))
        .collect();
    // the finaliser of SplitMix64
    let mixed = |[first, second]: &[u32; 2]| {
        let mut z = (seed << 32) | u64::from((first << 8) | second);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    pairs.sort_by_key(mixed);
    pairs.truncate(THREE);
    pairs
}

/// Several sequences at once through four windows; then a copy of a sequence, and one that is cut short.
fn several_sequences(whole: &mut Whole, windows: &mut Windows<'_>, case: Case) {
    let label = case.label();
    for (number, step) in steps(&MANY).iter().enumerate() {
        let what = format!("{label}, several sequences, batch {number}");
        assert_same_bits(&step.on(whole), &windows.logits(&MANY_CUTS, step), &what);
    }
    let held = windows.chain(&MANY_CUTS)[0].held(0);
    for window in windows.chain(&MANY_CUTS) {
        window.copy(0, 1, held).unwrap();
    }
    let mut next = |slot| {
        let step = Step {
            spans: vec![span(slot, held, 1)],
            tokens: vec![7],
            want: vec![0],
        };
        windows.logits(&MANY_CUTS, &step)
    };
    let (one, other) = (next(0), next(1));
    assert_same_bits(&one, &other, &format!("{label}, a copy beside its original"));
    for window in windows.chain(&MANY_CUTS) {
        let cut = window.truncate(2, 9);
        let state = matches!(cut, Err(EngineError::Truncate { slot: 2, length: 9, .. }));
        assert_eq!(state, case.architecture.is_hybrid(), "{label}: {cut:?}");
        window.truncate(2, 0).unwrap();
    }
}

/// One batch.
struct Step {
    spans: Vec<Span>,
    tokens: Vec<i32>,
    /// the rows whose logits are compared: the last of each span
    want: Vec<u32>,
}

impl Step {
    fn on(&self, whole: &mut Whole) -> Vec<f32> {
        logits(whole, &self.spans, &self.tokens, &self.want)
    }
}

/// The batches, from empty slots on.
fn steps(batches: &[Batch<'_>]) -> Vec<Step> {
    let mut held = [0; SLOTS as usize];
    let mut steps = Vec::new();
    for batch in batches {
        let (mut spans, mut tokens, mut want) = (Vec::new(), Vec::new(), Vec::new());
        for &(slot, count) in *batch {
            let start: u32 = held[slot as usize];
            spans.push(span(slot, start, count));
            tokens.extend((start..start + count).map(|position| ((position * 37 + slot * 11) % 250) as i32));
            want.push(tokens.len() as u32 - 1);
            held[slot as usize] += count;
        }
        steps.push(Step { spans, tokens, want });
    }
    steps
}

/// The windows of one model, each loaded when it is first used.
struct Windows<'a> {
    backend: &'a Backend,
    model: &'a Path,
    layers: u32,
    folder: TempDir,
    embedder: Embedder,
    loaded: HashMap<(u32, u32), Window>,
}

impl<'a> Windows<'a> {
    fn new(backend: &'a Backend, model: &'a Path, layers: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let scale = arch::input_scale(&Model::open(model).unwrap()).unwrap();
        let embedder = Embedder::open(&vocabulary_file(model, folder.path()), scale).unwrap();
        Self {
            backend,
            model,
            layers,
            folder,
            embedder,
            loaded: HashMap::new(),
        }
    }

    fn window(&mut self, start: u32, end: u32) -> &mut Window {
        let last = end == self.layers;
        self.loaded.entry((start, end)).or_insert_with(|| {
            let file = cut(self.model, start, end, last, self.folder.path());
            let options = WindowOptions {
                output: if last { options().output } else { Output::Hidden },
                ..options()
            };
            let window = Window::load(self.backend, &file, &options)
                .unwrap_or_else(|error| panic!("{}, {start}..{end}: {error:?}", self.model.display()));
            // it is in memory, or mapped
            std::fs::remove_file(file).unwrap();
            window
        })
    }

    /// Those windows of a cut that have been used before.
    fn chain(&mut self, cuts: &[u32]) -> Vec<&mut Window> {
        let bounds = bounds(cuts, self.layers);
        let mut chain: Vec<_> = self
            .loaded
            .iter_mut()
            .filter(|(window, _)| bounds.contains(window))
            .collect();
        chain.sort_by_key(|(window, _)| **window);
        chain.into_iter().map(|(_, window)| window).collect()
    }

    fn clear(&mut self, cuts: &[u32]) {
        for window in self.chain(cuts) {
            (0..SLOTS).for_each(|slot| window.clear(slot));
        }
    }

    /// Logits of the windows, run one after the other.
    fn logits(&mut self, cuts: &[u32], step: &Step) -> Vec<f32> {
        let (mut hidden, mut next) = (Vec::new(), Vec::new());
        self.embedder.rows(&step.tokens, &mut hidden).unwrap();
        for (start, end) in bounds(cuts, self.layers) {
            let last = end == self.layers;
            let window = self.window(start, end);
            if last {
                window.run_logits(&step.spans, &hidden, &step.want, &mut next).unwrap();
            } else {
                window.run(&step.spans, &hidden, &mut next).unwrap();
            }
            std::mem::swap(&mut hidden, &mut next);
        }
        hidden
    }
}
