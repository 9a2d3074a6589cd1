-- Jobs, what happened to them, and the one table of their legal transitions. What changes often (jobs)
-- is kept apart from what never does (job_specs), so that an update stays small.

-- Times cross the wire as microseconds since 1970; NULL is "not yet" or "never".
CREATE FUNCTION from_micros(bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE STRICT
  AS $$ SELECT to_timestamp($1::double precision / 1000000) $$;
CREATE FUNCTION micros(timestamptz) RETURNS bigint LANGUAGE sql STABLE STRICT
  AS $$ SELECT (extract(epoch FROM $1) * 1000000)::bigint $$;

CREATE TABLE jobs (
  uid text COLLATE "C" PRIMARY KEY,
  project text NOT NULL CHECK (project <> ''),
  job_id text NOT NULL CHECK (job_id <> ''),
  creator text NOT NULL,
  request_id text CHECK (request_id <> ''),
  labels jsonb NOT NULL,
  priority integer NOT NULL,
  min_slots integer NOT NULL CHECK (min_slots >= 1),
  max_slots integer NOT NULL CHECK (max_slots >= min_slots),
  device text NOT NULL,
  bytes_per_slot bigint NOT NULL,
  total_steps bigint NOT NULL,
  max_restarts integer NOT NULL,
  backoff_us bigint NOT NULL,
  create_time timestamptz NOT NULL,

  state text NOT NULL CHECK (state IN ('QUEUED', 'STARTING', 'RUNNING', 'SUSPENDING', 'SUSPENDED',
                                       'CANCELLING', 'CANCELLED', 'SUCCEEDED', 'FAILED')),
  reason_code text NOT NULL,
  reason_message text NOT NULL,
  suspend_cause text NOT NULL CHECK (suspend_cause IN ('NONE', 'USER', 'PREEMPTED', 'DRAINED')),
  version bigint NOT NULL CHECK (version >= 1),
  attempt bigint NOT NULL CHECK (attempt >= 0),
  restarts integer NOT NULL CHECK (restarts >= 0 AND restarts <= max_restarts),
  step bigint NOT NULL,
  update_time timestamptz NOT NULL,
  not_before timestamptz,
  start_time timestamptz,
  end_time timestamptz,
  suspend_deadline timestamptz,
  failure jsonb,
  newest_checkpoint_uri text NOT NULL,
  feed_sequence bigint NOT NULL,  -- of the newest item of feed and metrics together

  UNIQUE (project, job_id),
  CHECK ((end_time IS NOT NULL) = (state IN ('CANCELLED', 'SUCCEEDED', 'FAILED'))),
  CHECK ((suspend_deadline IS NOT NULL) = (state = 'SUSPENDING'))
) WITH (fillfactor = 70);

CREATE UNIQUE INDEX jobs_request ON jobs (project, request_id) WHERE request_id IS NOT NULL;
CREATE INDEX jobs_newest ON jobs (create_time DESC, uid DESC);
CREATE INDEX jobs_newest_of_project ON jobs (project, create_time DESC, uid DESC);
CREATE INDEX jobs_live ON jobs (state)
  WHERE state IN ('QUEUED', 'STARTING', 'RUNNING', 'SUSPENDING', 'CANCELLING');

CREATE TABLE job_specs (
  job_uid text COLLATE "C" PRIMARY KEY REFERENCES jobs ON DELETE CASCADE,
  spec bytea NOT NULL,
  plan_summary bytea NOT NULL
);

-- storage/records/job.h, kJobTransitions; a test compares.
CREATE TABLE job_transitions (
  from_state text NOT NULL,
  trigger text NOT NULL,
  to_state text NOT NULL,
  PRIMARY KEY (from_state, trigger)
);
INSERT INTO job_transitions (from_state, trigger, to_state) VALUES
  ('QUEUED', 'PLACE', 'STARTING'),
  ('QUEUED', 'PAUSE', 'SUSPENDED'),
  ('QUEUED', 'CANCEL', 'CANCELLED'),
  ('QUEUED', 'FAIL', 'FAILED'),
  ('STARTING', 'FIRST_STEP', 'RUNNING'),
  ('STARTING', 'PAUSE', 'SUSPENDING'),
  ('STARTING', 'PREEMPT', 'SUSPENDING'),
  ('STARTING', 'CANCEL', 'CANCELLING'),
  ('STARTING', 'SUCCEED', 'SUCCEEDED'),
  ('STARTING', 'RETRY', 'QUEUED'),
  ('STARTING', 'FAIL', 'FAILED'),
  ('RUNNING', 'PAUSE', 'SUSPENDING'),
  ('RUNNING', 'PREEMPT', 'SUSPENDING'),
  ('RUNNING', 'CANCEL', 'CANCELLING'),
  ('RUNNING', 'SUCCEED', 'SUCCEEDED'),
  ('RUNNING', 'RETRY', 'QUEUED'),
  ('RUNNING', 'FAIL', 'FAILED'),
  ('SUSPENDING', 'SUSPENDED_OK', 'SUSPENDED'),
  ('SUSPENDING', 'PREEMPT', 'QUEUED'),
  ('SUSPENDING', 'RESUME', 'SUSPENDING'),
  ('SUSPENDING', 'PAUSE', 'SUSPENDING'),
  ('SUSPENDING', 'CANCEL', 'CANCELLING'),
  ('SUSPENDING', 'SUCCEED', 'SUCCEEDED'),
  ('SUSPENDING', 'RETRY', 'QUEUED'),
  ('SUSPENDING', 'FAIL', 'FAILED'),
  ('SUSPENDED', 'RESUME', 'QUEUED'),
  ('SUSPENDED', 'CANCEL', 'CANCELLED'),
  ('CANCELLING', 'RANKS_GONE', 'CANCELLED'),
  ('CANCELLING', 'SUCCEED', 'SUCCEEDED');

CREATE FUNCTION check_job_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.state <> OLD.state AND NOT EXISTS (
      SELECT FROM job_transitions WHERE from_state = OLD.state AND to_state = NEW.state) THEN
    RAISE EXCEPTION 'job %: % to % is no legal transition', OLD.uid, OLD.state, NEW.state
      USING ERRCODE = 'check_violation';
  END IF;
  IF NEW.attempt <> OLD.attempt AND NOT (
      OLD.state = 'QUEUED' AND NEW.state = 'STARTING' AND NEW.attempt = OLD.attempt + 1) THEN
    RAISE EXCEPTION 'job %: attempt % to % without a placement', OLD.uid, OLD.attempt, NEW.attempt
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER jobs_move BEFORE UPDATE ON jobs FOR EACH ROW
  WHEN (OLD.state IS DISTINCT FROM NEW.state OR OLD.attempt IS DISTINCT FROM NEW.attempt)
  EXECUTE FUNCTION check_job_move();

-- What happened, but for metrics. A job's sequences, over feed and metrics together, have no gap: they
-- are given out of jobs.feed_sequence under the lock of the job's row.
CREATE TABLE feed (
  job_uid text COLLATE "C" NOT NULL REFERENCES jobs ON DELETE CASCADE,
  sequence bigint NOT NULL,
  time timestamptz NOT NULL,
  attempt bigint NOT NULL,
  kind text NOT NULL CHECK (kind IN ('STATE', 'CHECKPOINT', 'ATTEMPT', 'NOTICE')),
  body jsonb NOT NULL,
  PRIMARY KEY (job_uid, sequence)
);

-- One row per point, not per value: a fifth of the rows, and NaN and infinities are themselves. Rows are
-- only added under the lock of the job's row and removed with the job: no foreign key to check per row.
CREATE TABLE metrics (
  job_uid text COLLATE "C" NOT NULL,
  sequence bigint NOT NULL,
  time timestamptz NOT NULL,
  attempt bigint NOT NULL,
  step bigint NOT NULL CHECK (step >= 1),
  split smallint NOT NULL CHECK (split IN (0, 1)),  -- train, validation
  names text[] NOT NULL,
  values double precision[] NOT NULL,
  PRIMARY KEY (job_uid, sequence),
  CHECK (cardinality(names) = cardinality(values))
);
CREATE UNIQUE INDEX metrics_series ON metrics (job_uid, step, split, attempt);

CREATE TABLE checkpoints (
  job_uid text COLLATE "C" NOT NULL REFERENCES jobs ON DELETE CASCADE,
  step bigint NOT NULL,
  attempt bigint NOT NULL,
  uri text NOT NULL,
  bytes bigint NOT NULL,
  manifest_sha256 text NOT NULL,
  weights_sha256 text NOT NULL,
  final boolean NOT NULL,
  create_time timestamptz NOT NULL,
  PRIMARY KEY (job_uid, step)
);
