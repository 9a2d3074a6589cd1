-- Works with programs that know 21 migrations. They ask no engine for nodes, and give none back.
--
-- Nodes that the yard asks an engine for, such as Slurm (storage/records/node_request.h).
CREATE TABLE node_requests (
  node text COLLATE "C" PRIMARY KEY,
  pool text NOT NULL,
  state text NOT NULL CHECK (state IN ('WANTED', 'ASKED', 'RELEASING', 'ENDED')),
  engine_id text NOT NULL DEFAULT '',
  engine_words text NOT NULL DEFAULT '',
  why text NOT NULL DEFAULT '',
  failed boolean NOT NULL DEFAULT false,
  proven_gone boolean NOT NULL DEFAULT false,
  create_time timestamptz NOT NULL,
  change_time timestamptz NOT NULL
);
CREATE INDEX live_node_requests ON node_requests (node) WHERE state <> 'ENDED';

-- One row: by which an engine that several yards share tells what is whose.
CREATE TABLE yard (
  id text NOT NULL,
  one boolean PRIMARY KEY DEFAULT true CHECK (one)
);
INSERT INTO yard (id) VALUES (replace(gen_random_uuid()::text, '-', ''));
