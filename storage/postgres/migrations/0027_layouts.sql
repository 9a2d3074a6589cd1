-- Works with programs that know 21 migrations.
--
-- They place a job in the layout that it was submitted with, whatever `layout` says, and tell its agents that one: where the number
-- of its slots does not suit it, the job fails. So layouts are to be changed once all servers are of today. A job that they end
-- or resume loses the column: it has then the layout that it was submitted with, and may want another number of slots.
--
-- `layout`: how ranks share the job out in place of its spec (executor/plan/spec/layout_change.h); of a rank, what its attempt was
-- placed with, in the row of the first one alone. '': as the spec has it.
ALTER TABLE jobs ADD COLUMN layout text NOT NULL DEFAULT '';
ALTER TABLE ended_jobs ADD COLUMN layout text NOT NULL DEFAULT '';
ALTER TABLE ranks ADD COLUMN layout text NOT NULL DEFAULT '';
