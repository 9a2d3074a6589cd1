-- What is kept of an attempt lies in the row of its first rank, and who holds a slot is what the ranks say: a placement
-- writes one row per rank. Servers that know only the tables of before cannot go on with this.
--
-- The right to run a rank, its claim, is given once, with the placement, to the agent that held the node's lease then: its
-- node's uid, its instance (boot and state directory), and a random token that a restored database does not give twice. A
-- rank whose node's lease ended is LOST: over for its job, and its slot is taken until it is proven GONE.

LOCK TABLE attempts, ranks, held_slots IN ACCESS EXCLUSIVE MODE;
DROP TABLE held_slots;

ALTER TABLE ranks
  DROP CONSTRAINT ranks_job_uid_attempt_fkey,
  -- Of the attempt; NULL for all ranks but the first.
  ADD COLUMN world_size integer CHECK (world_size >= 1),
  ADD COLUMN restore_step bigint CHECK (restore_step >= 0),
  ADD COLUMN restore_uri text,
  ADD COLUMN restore_manifest_sha256 text,
  ADD COLUMN create_time timestamptz,
  -- The claim. Empty: of an agent of before.
  ADD COLUMN node_uid text COLLATE "C" NOT NULL DEFAULT '',
  ADD COLUMN node_instance text COLLATE "C" NOT NULL DEFAULT '',
  ADD COLUMN claim text COLLATE "C" NOT NULL DEFAULT '',
  ADD COLUMN lost boolean NOT NULL DEFAULT false,  -- it is LOST, or was
  DROP CONSTRAINT ranks_state_check,
  ADD CONSTRAINT ranks_state_check CHECK (state IN ('ASSIGNED', 'RUNNING', 'LOST', 'GONE')),
  DROP CONSTRAINT ranks_check,
  ADD CONSTRAINT ranks_over CHECK (state NOT IN ('LOST', 'GONE') OR (outcome <> 'NONE' AND gone_time IS NOT NULL)),
  ADD CONSTRAINT ranks_lost CHECK (lost OR state <> 'LOST');

UPDATE ranks r SET world_size = a.world_size, restore_step = a.restore_step, restore_uri = a.restore_uri,
                   restore_manifest_sha256 = a.restore_manifest_sha256, create_time = a.create_time
FROM attempts a WHERE a.job_uid = r.job_uid AND a.attempt = r.attempt AND r.rank = 0;
UPDATE ranks r SET node_uid = n.uid, node_instance = n.instance FROM nodes n WHERE n.name = r.node AND r.state <> 'GONE';

ALTER TABLE ranks ADD CONSTRAINT ranks_first CHECK (
  (rank = 0) = (world_size IS NOT NULL AND restore_step IS NOT NULL AND restore_uri IS NOT NULL
                AND restore_manifest_sha256 IS NOT NULL AND create_time IS NOT NULL));

DROP TABLE attempts;
CREATE VIEW attempts AS
  SELECT job_uid, attempt, world_size, restore_step, restore_uri, restore_manifest_sha256, create_time
  FROM ranks WHERE rank = 0;

CREATE INDEX ranks_lost_on ON ranks (node) WHERE state = 'LOST';
CREATE INDEX ranks_lost_of ON ranks (job_uid) WHERE state = 'LOST';
CREATE INDEX ranks_lost_changed ON ranks (changed) WHERE lost;

INSERT INTO job_transitions (from_state, trigger, to_state) VALUES
  ('QUEUED', 'CANCEL_LOST', 'CANCELLING'),
  ('SUSPENDED', 'CANCEL_LOST', 'CANCELLING');
