-- Nodes with their leases, attempts with their ranks, and who holds which slot.

CREATE TABLE nodes (
  name text COLLATE "C" PRIMARY KEY,
  incarnation text NOT NULL,
  address text NOT NULL,
  agent_version text NOT NULL,
  labels jsonb NOT NULL,
  slots jsonb NOT NULL,
  draining boolean NOT NULL,
  reachable boolean NOT NULL,
  lease_end timestamptz NOT NULL,
  create_time timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE attempts (
  job_uid text COLLATE "C" NOT NULL REFERENCES jobs ON DELETE CASCADE,
  attempt bigint NOT NULL CHECK (attempt >= 1),
  world_size integer NOT NULL CHECK (world_size >= 1),
  restore_step bigint NOT NULL CHECK (restore_step >= 0),
  restore_uri text NOT NULL,
  restore_manifest_sha256 text NOT NULL,
  create_time timestamptz NOT NULL,
  end_time timestamptz,
  PRIMARY KEY (job_uid, attempt)
);

CREATE TABLE ranks (
  job_uid text COLLATE "C" NOT NULL,
  attempt bigint NOT NULL,
  rank integer NOT NULL CHECK (rank >= 0),
  node text COLLATE "C" NOT NULL REFERENCES nodes,
  slots integer[] NOT NULL CHECK (cardinality(slots) >= 1),
  state text NOT NULL CHECK (state IN ('ASSIGNED', 'RUNNING', 'GONE')),
  outcome text NOT NULL CHECK (outcome IN ('NONE', 'SUCCEEDED', 'SUSPENDED', 'FAILED', 'KILLED', 'LOST')),
  acked_sequence bigint NOT NULL,
  failure jsonb,
  gone_time timestamptz,
  PRIMARY KEY (job_uid, attempt, rank),
  FOREIGN KEY (job_uid, attempt) REFERENCES attempts ON DELETE CASCADE,
  CHECK (state <> 'GONE' OR (outcome <> 'NONE' AND gone_time IS NOT NULL))
) WITH (fillfactor = 70);
CREATE INDEX ranks_alive ON ranks (node) WHERE state <> 'GONE';

-- One row per slot in use: two attempts cannot hold the same one. Removed when its rank is gone.
CREATE TABLE held_slots (
  node text COLLATE "C" NOT NULL,
  slot integer NOT NULL,
  job_uid text COLLATE "C" NOT NULL,
  attempt bigint NOT NULL,
  rank integer NOT NULL,
  PRIMARY KEY (node, slot),
  FOREIGN KEY (job_uid, attempt, rank) REFERENCES ranks ON DELETE CASCADE
);
CREATE INDEX held_slots_rank ON held_slots (job_uid, attempt, rank);
