-- Works with programs that know 21 migrations. They do not look at it.
--
-- Tokens with which machines join the yard, and the keys by which its nodes are known (storage/records/node_key.h).
CREATE TABLE join_tokens (
  id text PRIMARY KEY,
  sha256 text NOT NULL UNIQUE,
  pool text NOT NULL,
  creator text NOT NULL,
  most_joins integer NOT NULL,
  joins integer NOT NULL DEFAULT 0,
  create_time timestamptz NOT NULL,
  expire_time timestamptz NOT NULL,
  revoke_time timestamptz,
  CHECK (joins BETWEEN 0 AND most_joins)
);
CREATE INDEX join_tokens_by_end ON join_tokens (expire_time);

CREATE TABLE node_keys (
  fingerprint text PRIMARY KEY,
  node text NOT NULL,
  node_uid text NOT NULL,
  pool text NOT NULL,
  token_id text NOT NULL,
  join_time timestamptz NOT NULL,
  revoke_time timestamptz,
  revoked_by text NOT NULL DEFAULT ''
);
CREATE INDEX node_keys_by_name ON node_keys (node);
-- A name belongs to one key at a time.
CREATE UNIQUE INDEX node_keys_of_names ON node_keys (node) WHERE revoke_time IS NULL;
