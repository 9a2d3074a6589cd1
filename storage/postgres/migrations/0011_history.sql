-- Live jobs are few and narrow: an ended job's row lies in ended_jobs, by the month in which the job was created, and a
-- resumed one comes back. Its feed lies from birth in that month's partition. Old months are dropped whole.
--
-- job_specs holds what of a job never changes; as it has a row for every job, live or ended, it is also the table that
-- keeps names and request ids unique.

-- All at once, so that no two of them are waited for in turn.
LOCK TABLE jobs, job_specs, feed, attempts, ranks, checkpoints IN ACCESS EXCLUSIVE MODE;

CREATE FUNCTION month_of(timestamptz) RETURNS date LANGUAGE sql IMMUTABLE STRICT
  AS $$ SELECT date_trunc('month', $1 AT TIME ZONE 'UTC')::date $$;

-- A label as one word of an index; no two labels give the same.
CREATE FUNCTION label_pair(key text, value text) RETURNS text LANGUAGE sql IMMUTABLE STRICT
  AS $$ SELECT length(key) || ':' || key || '=' || value $$;
CREATE FUNCTION label_pairs(labels jsonb) RETURNS text[] LANGUAGE sql IMMUTABLE STRICT
  AS $$ SELECT coalesce(array_agg(label_pair(key, value)), '{}') FROM jsonb_each_text(labels) $$;

-- Makes the partition of a month, if it is missing, of a table whose column `key` says the month; rows that came before
-- their partition lie in PARENT_default and move into it. It is stored as PARENT_default is.
CREATE FUNCTION make_month(parent text, key text, month date) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  part text := parent || to_char(month, '_YYYY_MM');
  first text := to_char(month, 'YYYY-MM-01 00:00:00+00');
  next text := to_char(month + interval '1 month', 'YYYY-MM-01 00:00:00+00');
  options text;
BEGIN
  IF to_regclass(part) IS NOT NULL THEN RETURN false; END IF;
  EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', parent || '_default');
  EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', part, parent);
  SELECT string_agg(option, ', ') INTO options FROM (
    SELECT unnest(c.reloptions) AS option FROM pg_class c WHERE c.oid = to_regclass(parent || '_default')
    UNION ALL
    SELECT 'toast.' || unnest(t.reloptions) FROM pg_class c JOIN pg_class t ON t.oid = c.reltoastrelid
    WHERE c.oid = to_regclass(parent || '_default')) AS of_default;
  IF options IS NOT NULL THEN EXECUTE format('ALTER TABLE %I SET (%s)', part, options); END IF;
  EXECUTE format('WITH moved AS (DELETE FROM %I WHERE %I >= %L AND %I < %L RETURNING *) INSERT INTO %I SELECT * FROM moved',
                 parent || '_default', key, first, key, next, part);
  EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, part, first, next);
  RETURN true;
END $$;

-- --- names and specs ---------------------------------------------------------------------------

ALTER TABLE job_specs DROP CONSTRAINT job_specs_job_uid_fkey;
ALTER TABLE job_specs
  ADD COLUMN project text, ADD COLUMN job_id text, ADD COLUMN request_id text CHECK (request_id <> ''),
  ADD COLUMN create_time timestamptz;  -- says the month
UPDATE job_specs s SET project = j.project, job_id = j.job_id, request_id = j.request_id, create_time = j.create_time
FROM jobs j WHERE j.uid = s.job_uid;
ALTER TABLE job_specs
  ALTER COLUMN project SET NOT NULL, ALTER COLUMN job_id SET NOT NULL, ALTER COLUMN create_time SET NOT NULL,
  ADD UNIQUE (job_id, project);
CREATE UNIQUE INDEX job_specs_request ON job_specs (project, request_id) WHERE request_id IS NOT NULL;

-- --- ended jobs --------------------------------------------------------------------------------

-- A row's job leaves `jobs`, and what it left behind stays: the server removes it with the job.
ALTER TABLE attempts DROP CONSTRAINT attempts_job_uid_fkey;
ALTER TABLE checkpoints DROP CONSTRAINT checkpoints_job_uid_fkey;
-- Nodes go before the jobs that once ran there. A placement shares its nodes' rows until it is committed.
ALTER TABLE ranks DROP CONSTRAINT ranks_node_fkey;
-- An attempt ends with the last of its ranks, which say when.
ALTER TABLE attempts DROP COLUMN end_time;

ALTER TABLE jobs DROP CONSTRAINT jobs_project_job_id_key;
DROP INDEX jobs_request, jobs_live;
CREATE INDEX jobs_state ON jobs (state);
CREATE INDEX jobs_priority ON jobs (priority, create_time DESC, uid DESC);
-- The state in which the job left the other of the two tables. NULL: it was submitted, or ended before this was kept.
ALTER TABLE jobs ADD COLUMN left_state text;

CREATE TABLE ended_jobs (
  LIKE jobs INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
  label_pairs text[] NOT NULL,
  PRIMARY KEY (uid, create_time),
  CONSTRAINT ended_jobs_end CHECK (end_time IS NOT NULL)
) PARTITION BY RANGE (create_time);
-- A page is read in the order of one of these, and ends when it is full.
CREATE INDEX ended_jobs_newest ON ended_jobs (create_time DESC, uid DESC);
CREATE INDEX ended_jobs_project ON ended_jobs (project, create_time DESC, uid DESC);
CREATE INDEX ended_jobs_state ON ended_jobs (state, create_time DESC, uid DESC);
CREATE INDEX ended_jobs_priority ON ended_jobs (priority, create_time DESC, uid DESC);
CREATE INDEX ended_jobs_labels ON ended_jobs USING gin (label_pairs) WITH (fastupdate = off);
CREATE INDEX ended_jobs_changed ON ended_jobs (changed);
CREATE TABLE ended_jobs_default PARTITION OF ended_jobs DEFAULT;

-- --- the feed ----------------------------------------------------------------------------------

ALTER TABLE feed RENAME TO feed_before;
ALTER TABLE feed_before RENAME CONSTRAINT feed_pkey TO feed_before_pkey;
CREATE TABLE feed (
  job_uid text COLLATE "C" NOT NULL,
  sequence bigint NOT NULL,
  month date NOT NULL,  -- of the job's creation
  time timestamptz NOT NULL,
  attempt bigint NOT NULL,
  kind text NOT NULL CHECK (kind IN ('STATE', 'CHECKPOINT', 'ATTEMPT', 'NOTICE')),
  body jsonb NOT NULL,
  PRIMARY KEY (job_uid, sequence, month)
) PARTITION BY RANGE (month);
CREATE TABLE feed_default PARTITION OF feed DEFAULT;

-- --- what is there moves -----------------------------------------------------------------------

SELECT make_month(parent, key, month)
FROM (VALUES ('ended_jobs', 'create_time'), ('feed', 'month'), ('metric_heads', 'month'), ('metric_chunks', 'month'))
       AS parents (parent, key),
     (SELECT DISTINCT month_of(create_time) AS month FROM jobs
      UNION SELECT month_of(now() + n * interval '1 month') FROM generate_series(0, 2) AS n) AS months;

INSERT INTO feed (job_uid, sequence, month, time, attempt, kind, body)
SELECT f.job_uid, f.sequence, month_of(j.create_time), f.time, f.attempt, f.kind, f.body
FROM feed_before f JOIN jobs j ON j.uid = f.job_uid;
DROP TABLE feed_before;

INSERT INTO ended_jobs SELECT j.*, label_pairs(j.labels) FROM jobs j WHERE j.end_time IS NOT NULL;
DELETE FROM jobs WHERE end_time IS NOT NULL;
ALTER TABLE jobs ADD CONSTRAINT jobs_live CHECK (end_time IS NULL);

-- --- moves between the two tables --------------------------------------------------------------

-- A row comes into `jobs` as a submission or by a legal move out of its end, and into `ended_jobs` by a legal end.
CREATE FUNCTION check_job_arrival() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.left_state IS NULL OR NOT EXISTS (
      SELECT FROM job_transitions WHERE from_state = NEW.left_state AND to_state = NEW.state) THEN
    RAISE EXCEPTION 'job %: % to % is no legal transition', NEW.uid, NEW.left_state, NEW.state
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER jobs_arrival BEFORE INSERT ON jobs FOR EACH ROW
  WHEN (NEW.left_state IS NOT NULL OR NEW.state <> 'QUEUED') EXECUTE FUNCTION check_job_arrival();
CREATE TRIGGER ended_jobs_arrival BEFORE INSERT ON ended_jobs FOR EACH ROW EXECUTE FUNCTION check_job_arrival();
CREATE TRIGGER ended_jobs_move BEFORE UPDATE ON ended_jobs FOR EACH ROW
  WHEN (OLD.state IS DISTINCT FROM NEW.state OR OLD.attempt IS DISTINCT FROM NEW.attempt)
  EXECUTE FUNCTION check_job_move();

-- --- retention ---------------------------------------------------------------------------------

-- How long what has ended is kept, in microseconds; see storage/retention_store.h.
CREATE TABLE retention (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  ended_jobs_us bigint NOT NULL CHECK (ended_jobs_us > 0),
  gone_nodes_us bigint NOT NULL CHECK (gone_nodes_us > 0)
);
INSERT INTO retention (ended_jobs_us, gone_nodes_us)
VALUES (365 * 86400000000, 30 * 86400000000);
