-- What failed on a node in a way that may be its fault: whether the node is sick, or a job that takes it down, is told by
-- which jobs it struck. Rows are added with what ranks report, in the same transaction, and no node's row is locked for it:
-- whoever loses a node locks that before jobs. A node's are removed with it.
-- Works with programs that know 12 migrations.

CREATE TABLE node_failures (
  node text COLLATE "C" NOT NULL,
  job_uid text COLLATE "C" NOT NULL,
  attempt bigint NOT NULL,
  job_id text NOT NULL,
  category text NOT NULL,
  time timestamptz NOT NULL,
  charged boolean NOT NULL,  -- of a loss: the job paid for it
  changed xid8 NOT NULL DEFAULT pg_current_xact_id(),  -- as of nodes, whose rows do not change with it
  PRIMARY KEY (node, job_uid, attempt)
);
CREATE INDEX node_failures_changed ON node_failures (changed);
CREATE TRIGGER node_failures_stamp BEFORE UPDATE ON node_failures FOR EACH ROW EXECUTE FUNCTION stamp_change();

-- Why its failures keep work from a node, since when they count again after an operator lifted that, and since when its
-- present boot is known.
ALTER TABLE nodes
  ADD COLUMN cordon text NOT NULL DEFAULT '', ADD COLUMN lifted_time timestamptz, ADD COLUMN boot_time timestamptz;
