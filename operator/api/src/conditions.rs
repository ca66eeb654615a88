//! Condition types of a Ring and their reasons. Their meaning is API: it never changes.
//!
//! All types are set, as `Unknown` with reason [`reasons::PENDING`], at the first visit. `Ready` sums up the others.

/// The spec can be planned: reasons [`reasons::ACCEPTED`], [`reasons::INVALID_PLAN`], [`reasons::INVALID_SPEC`],
/// [`reasons::NAME_TOO_LONG`], [`reasons::NAME_IN_USE`], [`reasons::UNSUPPORTED_SOURCE`],
/// [`reasons::INSUFFICIENT_MEMORY`].
pub const ACCEPTED: &str = "Accepted";
/// The model's prefix was read: reasons [`reasons::RESOLVED`], [`reasons::SOURCE_UNREACHABLE`],
/// [`reasons::UNAUTHORIZED`], [`reasons::UNSUPPORTED_ARCHITECTURE`], [`reasons::INCOMPLETE_FILE`],
/// [`reasons::MALFORMED_FILE`], [`reasons::UNSUPPORTED_FORMAT`], and what else the reader of sources calls a failure.
pub const MODEL_RESOLVED: &str = "ModelResolved";
/// Every pod of the plan has a node: reasons [`reasons::ALL_SCHEDULED`], [`reasons::INSUFFICIENT_CAPACITY`] with the
/// scheduler's own message, and while pods don't exist [`reasons::AWAITING_STAGES`] or why they are refused.
pub const SCHEDULED: &str = "Scheduled";
/// Every layer of every ring is held by a ready stage: reasons [`reasons::ALL_COVERED`], [`reasons::AWAITING_STAGES`],
/// [`reasons::AWAITING_CLAIMS`], naming the layers that are not.
pub const COVERED: &str = "Covered";
/// A lap went round every ring: reasons [`reasons::LAP_COMPLETED`], or what keeps it from that.
pub const READY: &str = "Ready";
/// The Ring comes closer to what it asks for, or is there: reasons [`reasons::ROLLING_OUT`], [`reasons::COMPLETE`],
/// [`reasons::PROGRESS_DEADLINE_EXCEEDED`].
pub const PROGRESSING: &str = "Progressing";
/// Something that once worked doesn't: reasons [`reasons::AS_EXPECTED`], [`reasons::STAGE_FAILED`],
/// [`reasons::RELAY_UNREACHABLE`], [`reasons::RELAY_REFUSED`], [`reasons::IMMUTABLE_FIELD`], [`reasons::NAME_IN_USE`],
/// [`reasons::CHILD_REFUSED`], [`reasons::OPERATOR_FORBIDDEN`], [`reasons::OUTDATED_DEFINITION`], and what else keeps
/// the operator from its work.
pub const DEGRADED: &str = "Degraded";

/// All types, in the order in which they are reached.
pub const ALL: [&str; 7] = [
    ACCEPTED,
    MODEL_RESOLVED,
    SCHEDULED,
    COVERED,
    READY,
    PROGRESSING,
    DEGRADED,
];

/// Reasons of conditions: `PascalCase` words for programs, beside a message for people.
pub mod reasons {
    /// not looked at yet
    pub const PENDING: &str = "Pending";
    /// `spec.suspend` is set
    pub const SUSPENDED: &str = "Suspended";
    /// `spec.replicas` is 0
    pub const SCALED_TO_ZERO: &str = "ScaledToZero";

    /// the spec can be planned
    pub const ACCEPTED: &str = "Accepted";
    /// the planner refused; its message names the layer or the missing bytes
    pub const INVALID_PLAN: &str = "InvalidPlan";
    /// the spec contradicts itself in a way that the schema can't see
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// children of the Ring would have names that are too long
    pub const NAME_TOO_LONG: &str = "NameTooLong";
    /// a source that a cluster can't read: `file`
    pub const UNSUPPORTED_SOURCE: &str = "UnsupportedSource";
    /// the pools are too small and the market may not take the rest
    pub const INSUFFICIENT_MEMORY: &str = "InsufficientMemory";

    /// the prefix was read
    pub const RESOLVED: &str = "Resolved";
    /// the source doesn't answer or has no such file
    pub const SOURCE_UNREACHABLE: &str = "SourceUnreachable";
    /// the source wants credentials, or other ones
    pub const UNAUTHORIZED: &str = "Unauthorized";
    /// the architecture can't be cut into windows
    pub const UNSUPPORTED_ARCHITECTURE: &str = "UnsupportedArchitecture";
    /// a part is missing or shorter than its table says
    pub const INCOMPLETE_FILE: &str = "IncompleteFile";
    /// the file isn't a GGUF, or a wrong one
    pub const MALFORMED_FILE: &str = "MalformedFile";
    /// a GGUF of a version, byte order or tensor type that isn't read
    pub const UNSUPPORTED_FORMAT: &str = "UnsupportedFormat";

    /// every pod has a node
    pub const ALL_SCHEDULED: &str = "AllScheduled";
    /// no node can take a pod
    pub const INSUFFICIENT_CAPACITY: &str = "InsufficientCapacity";

    /// every layer is held
    pub const ALL_COVERED: &str = "AllCovered";
    /// cluster stages are not ready yet
    pub const AWAITING_STAGES: &str = "AwaitingStages";
    /// open windows wait for volunteers
    pub const AWAITING_CLAIMS: &str = "AwaitingClaims";

    /// a lap went round
    pub const LAP_COMPLETED: &str = "LapCompleted";
    /// all layers are held, the links are being opened
    pub const FORMING: &str = "Forming";

    /// stages are being made or replaced
    pub const ROLLING_OUT: &str = "RollingOut";
    /// nothing is left to do
    pub const COMPLETE: &str = "Complete";
    /// no progress for `spec.progressDeadlineSeconds`
    pub const PROGRESS_DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";

    /// nothing is wrong
    pub const AS_EXPECTED: &str = "AsExpected";
    /// a stage fails again and again; the message names it and quotes its container
    pub const STAGE_FAILED: &str = "StageFailed";
    /// the relay doesn't answer the operator
    pub const RELAY_UNREACHABLE: &str = "RelayUnreachable";
    /// the relay answers, and takes the ring not; the message is its own
    pub const RELAY_REFUSED: &str = "RelayRefused";
    /// a change would alter a field of a child that can't change; the message names it
    pub const IMMUTABLE_FIELD: &str = "ImmutableField";
    /// an object that isn't the Ring's has the name of one of its children
    pub const NAME_IN_USE: &str = "NameInUse";
    /// the API server would not take a child; the message is its own
    pub const CHILD_REFUSED: &str = "ChildRefused";
    /// the operator lacks a right; the message is the API server's
    pub const OPERATOR_FORBIDDEN: &str = "OperatorForbidden";
    /// the Secret of the owner's key holds something else
    pub const MALFORMED_KEY: &str = "MalformedKey";
    /// of an event: this operator leaves the Ring to another one
    pub const MANAGED_ELSEWHERE: &str = "ManagedElsewhere";
    /// the cluster's definition of Ring lacks fields that this operator writes or reads
    pub const OUTDATED_DEFINITION: &str = "OutdatedDefinition";
}
