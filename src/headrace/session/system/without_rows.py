"""Relations of `pg_catalog` that have no rows here, with the columns that they have in PostgreSQL.

Clients join them, and are to find nothing there instead of an error.
"""

from __future__ import annotations

from typing import Final

_TABLE_COUNTS: Final = (
    "relid oid, schemaname name, relname name, seq_scan bigint, seq_tup_read bigint, idx_scan bigint, "
    "idx_tup_fetch bigint, n_tup_ins bigint, n_tup_upd bigint, n_tup_del bigint, n_tup_hot_upd bigint, "
    "n_live_tup bigint, n_dead_tup bigint, n_mod_since_analyze bigint, n_ins_since_vacuum bigint, "
    "last_vacuum timestamp, last_autovacuum timestamp, last_analyze timestamp, last_autoanalyze timestamp, "
    "vacuum_count bigint, autovacuum_count bigint, analyze_count bigint, autoanalyze_count bigint"
)
_BLOCK_COUNTS: Final = (
    "relid oid, schemaname name, relname name, heap_blks_read bigint, heap_blks_hit bigint, idx_blks_read bigint, "
    "idx_blks_hit bigint, toast_blks_read bigint, toast_blks_hit bigint, tidx_blks_read bigint, tidx_blks_hit bigint"
)
_INDEX_COUNTS: Final = (
    "relid oid, indexrelid oid, schemaname name, relname name, indexrelname name, idx_scan bigint, "
    "idx_tup_read bigint, idx_tup_fetch bigint"
)

PG_CATALOG: Final[dict[str, str]] = {
    "pg_stat_all_tables": _TABLE_COUNTS,
    "pg_stat_user_tables": _TABLE_COUNTS,
    "pg_statio_all_tables": _BLOCK_COUNTS,
    "pg_statio_user_tables": _BLOCK_COUNTS,
    "pg_stat_all_indexes": _INDEX_COUNTS,
    "pg_stat_user_indexes": _INDEX_COUNTS,
    "pg_stats": "schemaname name, tablename name, attname name, inherited boolean, null_frac float, avg_width int, "
    "n_distinct float, most_common_vals, most_common_freqs array<float>, histogram_bounds, correlation float, "
    "most_common_elems, most_common_elem_freqs array<float>, elem_count_histogram array<float>",
    "pg_policies": "schemaname name, tablename name, policyname name, permissive, roles array<name>, cmd, qual, "
    "with_check",
    "pg_prepared_xacts": "transaction xid, gid, prepared timestamp, owner name, database name",
    "pg_replication_slots": "slot_name name, plugin name, slot_type, datoid oid, database name, temporary boolean, "
    "active boolean, active_pid int, xmin xid, catalog_xmin xid, restart_lsn, confirmed_flush_lsn, "
    "wal_status, safe_wal_size bigint, two_phase boolean",
    "pg_collation": "oid oid, collname name, collnamespace oid, collowner oid, collprovider char, "
    "collisdeterministic boolean, collencoding int, collcollate, collctype, colliculocale, collicurules, collversion",
    "pg_inherits": "inhrelid oid, inhparent oid, inhseqno int, inhdetachpending boolean",
    "pg_trigger": "oid oid, tgrelid oid, tgparentid oid, tgname name, tgfoid oid, tgtype smallint, tgenabled char, "
    "tgisinternal boolean, tgconstrrelid oid, tgconstrindid oid, tgconstraint oid, tgdeferrable boolean, "
    "tginitdeferred boolean, tgnargs smallint, tgattr int2vector, tgargs binary, tgqual pg_node_tree, "
    "tgoldtable name, tgnewtable name",
    "pg_policy": "oid oid, polname name, polrelid oid, polcmd char, polpermissive boolean, polroles array<oid>, "
    "polqual pg_node_tree, polwithcheck pg_node_tree",
    "pg_statistic_ext": "oid oid, stxrelid oid, stxname name, stxnamespace oid, stxkind array<char>, "
    "stxstattarget int, stxkeys int2vector, stxowner oid, stxexprs pg_node_tree",
    "pg_publication": "oid oid, pubname name, pubowner oid, puballtables boolean, pubinsert boolean, "
    "pubupdate boolean, pubdelete boolean, pubtruncate boolean, pubviaroot boolean",
    "pg_publication_rel": "oid oid, prpubid oid, prrelid oid, prqual pg_node_tree, prattrs int2vector",
    "pg_publication_namespace": "oid oid, pnpubid oid, pnnspid oid",
    "pg_publication_tables": "pubname name, schemaname name, tablename name, attnames array<name>, rowfilter",
    "pg_enum": "oid oid, enumtypid oid, enumsortorder float, enumlabel name",
    "pg_range": "rngtypid oid, rngsubtype oid, rngmultitypid oid, rngcollation oid, rngsubopc oid, "
    "rngcanonical regproc, rngsubdiff regproc",
    "pg_extension": "oid oid, extname name, extowner oid, extnamespace oid, extrelocatable boolean, extversion, "
    "extconfig array<oid>, extcondition array<string>",
    "pg_sequence": "seqrelid oid, seqtypid oid, seqstart bigint, seqincrement bigint, seqmin bigint, "
    "seqmax bigint, seqcache bigint, seqcycle boolean",
    "pg_partitioned_table": "partrelid oid, partstrat char, partnatts smallint, partdefid oid, "
    "partattrs int2vector, partclass oidvector, partcollation oidvector, partexprs pg_node_tree",
    "pg_opclass": "oid oid, opcname name, opcmethod oid, opcnamespace oid, opcowner oid, opcfamily oid, "
    "opcintype oid, opcdefault boolean, opckeytype oid",
    "pg_locks": "locktype, database oid, relation oid, page int, tuple smallint, virtualxid, "
    "transactionid xid, classid oid, objid oid, objsubid smallint, virtualtransaction, pid int, mode, "
    "granted boolean, fastpath boolean, waitstart timestamp",
    "pg_event_trigger": "oid oid, evtname name, evtevent name, evtowner oid, evtfoid oid, evtenabled char, "
    "evttags array<string>",
    "pg_ts_config": "oid oid, cfgname name, cfgnamespace oid, cfgowner oid, cfgparser oid",
    "pg_ts_dict": "oid oid, dictname name, dictnamespace oid, dictowner oid, dicttemplate oid, dictinitoption",
    "pg_ts_parser": "oid oid, prsname name, prsnamespace oid, prsstart regproc, prstoken regproc, prsend regproc, "
    "prsheadline regproc, prslextype regproc",
    "pg_ts_template": "oid oid, tmplname name, tmplnamespace oid, tmplinit regproc, tmpllexize regproc",
    "pg_operator": "oid oid, oprname name, oprnamespace oid, oprowner oid, oprkind char, oprcanmerge boolean, "
    "oprcanhash boolean, oprleft oid, oprright oid, oprresult oid, oprcom oid, oprnegate oid, "
    "oprcode regproc, oprrest regproc, oprjoin regproc",
    "pg_cast": "oid oid, castsource oid, casttarget oid, castfunc oid, castcontext char, castmethod char",
    "pg_foreign_data_wrapper": "oid oid, fdwname name, fdwowner oid, fdwhandler oid, fdwvalidator oid, "
    "fdwacl array<aclitem>, fdwoptions array<string>",
    "pg_user_mappings": "umid oid, srvid oid, srvname name, umuser oid, usename name, umoptions array<string>",
    "pg_db_role_setting": "setdatabase oid, setrole oid, setconfig array<string>",
    "pg_subscription": "oid oid, subdbid oid, subname name, subowner oid, subenabled boolean, subconninfo, "
    "subslotname name, subsynccommit, subpublications array<string>, subbinary boolean, substream, "
    "subtwophasestate char, subdisableonerr boolean, subskiplsn",
    "pg_conversion": "oid oid, conname name, connamespace oid, conowner oid, conforencoding int, "
    "contoencoding int, conproc regproc, condefault boolean",
    "pg_aggregate": "aggfnoid regproc, aggkind char, aggnumdirectargs smallint, aggtransfn regproc, "
    "aggfinalfn regproc, aggcombinefn regproc, aggserialfn regproc, aggdeserialfn regproc, aggmtransfn regproc, "
    "aggminvtransfn regproc, aggmfinalfn regproc, aggfinalextra boolean, aggmfinalextra boolean, aggfinalmodify char, "
    "aggmfinalmodify char, aggsortop oid, aggtranstype oid, aggtransspace int, aggmtranstype oid, aggmtransspace int, "
    "agginitval, aggminitval",
    "pg_opfamily": "oid oid, opfmethod oid, opfname name, opfnamespace oid, opfowner oid",
    "pg_sequences": "schemaname name, sequencename name, sequenceowner name, data_type, start_value bigint, "
    "min_value bigint, max_value bigint, increment_by bigint, cycle boolean, cache_size bigint, last_value bigint",
    "pg_rules": "schemaname name, tablename name, rulename name, definition",
    "pg_available_extensions": "name name, default_version, installed_version, comment",
    "pg_largeobject_metadata": "oid oid, lomowner oid, lomacl array<aclitem>",
    "pg_seclabels": "objoid oid, classoid oid, objsubid int, objtype, objnamespace oid, objname, provider, "
    "label",
}  # fmt: skip

INFORMATION_SCHEMA: Final[dict[str, str]] = {
    "referential_constraints": "constraint_catalog name, constraint_schema name, constraint_name name, "
    "unique_constraint_catalog name, unique_constraint_schema name, unique_constraint_name name, "
    "match_option varchar, update_rule varchar, delete_rule varchar",
    "check_constraints": "constraint_catalog name, constraint_schema name, constraint_name name, check_clause varchar",
    "sequences": "sequence_catalog name, sequence_schema name, sequence_name name, data_type varchar, "
    "numeric_precision int, numeric_precision_radix int, numeric_scale int, start_value varchar, "
    "minimum_value varchar, maximum_value varchar, increment varchar, cycle_option varchar",
    "triggers": "trigger_catalog name, trigger_schema name, trigger_name name, event_manipulation varchar, "
    "event_object_catalog name, event_object_schema name, event_object_table name, action_order int, "
    "action_condition varchar, action_statement varchar, action_orientation varchar, action_timing varchar, "
    "action_reference_old_table name, action_reference_new_table name, action_reference_old_row name, "
    "action_reference_new_row name, created timestamp",
    "domains": "domain_catalog name, domain_schema name, domain_name name, data_type varchar, domain_default varchar, "
    "udt_catalog name, udt_schema name, udt_name name",
}
