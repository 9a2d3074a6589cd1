-- Works with programs that know 21 migrations. They place work on a node that leaves.
--
-- Until when the agent of a node that leaves lets what runs there end; NULL: it stays. It counts for the session that said so
-- alone (leases.incarnation).
ALTER TABLE nodes ADD COLUMN leave_time timestamptz;
ALTER TABLE nodes ADD COLUMN leave_session text NOT NULL DEFAULT '';
