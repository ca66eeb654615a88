-- One schema for SQLite and PostgreSQL: text, and integers of 64 bits. Keys and hashes are hex, times milliseconds.

CREATE TABLE settings (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
);

-- A ring's state is the rules' own, as JSON; it is locked, changed and written back as one. The version grows with every
-- change, so that whoever waits for one needs to look at a number alone. A ring that was withdrawn keeps its row: its
-- owner stays its owner, and its epochs go on.
CREATE TABLE rings (
    ring TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    version BIGINT NOT NULL,
    state TEXT NOT NULL
);
CREATE INDEX rings_by_owner ON rings (owner);

-- What each epoch's counter stands at, and who earns with it: the rules' own, as JSON.
CREATE TABLE epochs (
    ring TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    account TEXT NOT NULL,
    PRIMARY KEY (ring, epoch)
);

CREATE TABLE ledger (
    ring TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    claim BIGINT NOT NULL,
    node TEXT NOT NULL,
    rate BIGINT NOT NULL,
    committed BIGINT NOT NULL,
    earned BIGINT NOT NULL,
    changed BIGINT NOT NULL,
    PRIMARY KEY (ring, epoch, claim)
);
CREATE INDEX ledger_by_node ON ledger (node, ring);

CREATE TABLE nodes (
    node TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    platform TEXT NOT NULL,
    memory BIGINT NOT NULL,
    enrolled BIGINT NOT NULL
);

-- Who may claim windows of a ring: by an invite, or because the owner keeps a window for it.
CREATE TABLE members (
    node TEXT NOT NULL,
    ring TEXT NOT NULL,
    reserved BIGINT NOT NULL,
    PRIMARY KEY (node, ring)
);
CREATE INDEX members_by_ring ON members (ring);

CREATE TABLE invites (
    id TEXT NOT NULL PRIMARY KEY,
    hash TEXT NOT NULL,
    ring TEXT NOT NULL,
    uses BIGINT NOT NULL,
    expires BIGINT NOT NULL
);

CREATE TABLE nonces (
    signer TEXT NOT NULL,
    nonce TEXT NOT NULL,
    expires BIGINT NOT NULL,
    PRIMARY KEY (signer, nonce)
);
CREATE INDEX nonces_by_end ON nonces (expires);

-- Relays that share this database, and when each was last heard of.
CREATE TABLE relays (
    url TEXT NOT NULL PRIMARY KEY,
    seen BIGINT NOT NULL
);
