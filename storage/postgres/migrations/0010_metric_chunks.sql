-- Metrics in columns: a row per point took 530 bytes. What was reported last lies in heads, a row per report; once a
-- job's heads hold a thousand points they become a chunk, a row per metric, with roll-ups beside it. Bytes are those of
-- storage/records/metric_block.h and metric_rollup.h. Both tables lie in partitions by the month in which the job was
-- created. Rows of `metrics` from before stay where they are, and are read along, until their job is deleted.

CREATE TABLE metric_heads (
  month date NOT NULL,  -- of the job's creation, its first day
  job_uid text COLLATE "C" NOT NULL,
  first_sequence bigint NOT NULL,
  last_sequence bigint NOT NULL,
  attempt bigint NOT NULL,
  first_step bigint NOT NULL,
  last_step bigint NOT NULL,
  points integer NOT NULL CHECK (points >= 1),
  pending integer NOT NULL,  -- points in the job's heads up to this one
  bytes bytea NOT NULL,
  PRIMARY KEY (month, job_uid, first_sequence),
  CHECK (first_sequence <= last_sequence AND first_step <= last_step)
) PARTITION BY RANGE (month);
ALTER TABLE metric_heads ALTER COLUMN bytes SET STORAGE EXTERNAL;  -- compressed already
-- Its rows live for seconds: their room is given back soon.
CREATE TABLE metric_heads_default PARTITION OF metric_heads DEFAULT
  WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
        toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 10000,
        toast.autovacuum_vacuum_cost_delay = 0);

-- Chunks of one level of one job do not overlap and leave no point out. Level 0 holds the points: one row (split -1)
-- with their sequences, times, steps and splits, one for each split and name with its values. Level l > 0 holds, by
-- split and name, folds over 10^l steps. Steps and sequences are those of the whole chunk.
CREATE TABLE metric_chunks (
  month date NOT NULL,
  job_uid text COLLATE "C" NOT NULL,
  level smallint NOT NULL CHECK (level BETWEEN 0 AND 6),
  first_sequence bigint NOT NULL,
  split smallint NOT NULL CHECK (split BETWEEN -1 AND 1),  -- index, train, validation
  name text NOT NULL,
  last_sequence bigint NOT NULL,
  attempt bigint NOT NULL,
  first_step bigint NOT NULL,
  last_step bigint NOT NULL,
  points integer NOT NULL CHECK (points >= 1),
  bytes bytea NOT NULL,
  PRIMARY KEY (month, job_uid, level, first_sequence, split, name),
  CHECK (first_sequence <= last_sequence AND first_step <= last_step)
) PARTITION BY RANGE (month);
ALTER TABLE metric_chunks ALTER COLUMN bytes SET STORAGE EXTERNAL;
CREATE TABLE metric_chunks_default PARTITION OF metric_chunks DEFAULT;
CREATE INDEX metric_chunks_ends ON metric_chunks (month, job_uid, last_sequence) WHERE split = -1;
CREATE INDEX metric_chunks_steps ON metric_chunks (month, job_uid, last_step) WHERE split = -1;
