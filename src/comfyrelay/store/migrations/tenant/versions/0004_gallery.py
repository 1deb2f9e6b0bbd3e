"""Outputs as the gallery shows them, what a user thinks of them, collections, and downloads of many."""

import sqlalchemy as sa
from alembic import op

from comfyrelay.store.types import JsonText, UtcTime

revision = "tenant_0004"
down_revision = "tenant_0003"
branch_labels = None
depends_on = None

TEXTS = {
    "postgresql": """
        (SELECT string_agg(substr(value, 1, 2000), chr(10))
           FROM json_each_text(json_extract_path(j.input_payload, 'values')))""",
    "sqlite": """
        (SELECT group_concat(substr(value, 1, 2000), char(10)) FROM json_each(j.input_payload, '$.values'))""",
}
# What was made before.
FILL = """
INSERT INTO outputs (id, tenant_id, job_id, number, batch_id, item_no, workflow_id, kind, label, texts, created_at)
SELECT f.id, j.tenant_id, j.id, 1, j.batch_id, j.item_no, j.workflow_id,
       CASE WHEN f.mime_type LIKE 'image/%' AND f.mime_type NOT LIKE 'image/svg%' THEN 'image'
            WHEN f.mime_type LIKE 'video/%' THEN 'video' WHEN f.mime_type LIKE 'audio/%' THEN 'audio'
            WHEN f.mime_type LIKE 'text/%' THEN 'text' ELSE 'file' END,
       j.label, {texts}, f.created_at
  FROM ai_jobs AS j JOIN files AS f ON f.id = j.output_file_id AND f.tenant_id = j.tenant_id
"""


def upgrade() -> None:
    op.create_table(
        "outputs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("batch_id", sa.Text()),
        sa.Column("item_no", sa.Integer(), nullable=False),
        sa.Column("workflow_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("label", sa.Text()),
        sa.Column("texts", sa.Text()),
        sa.Column("mark", sa.Text()),
        sa.Column("note", sa.Text()),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.CheckConstraint("mark IS NULL OR mark IN ('starred', 'rejected')", name=op.f("ck_outputs_mark")),
        sa.ForeignKeyConstraint(["id"], ["files.id"], name=op.f("fk_outputs_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outputs")),
        sa.UniqueConstraint("job_id", "number", name=op.f("uq_outputs_job_id_number")),
    )
    newest = ["tenant_id", "created_at", "id", "workflow_id", "kind", "batch_id"]
    op.create_index("ix_outputs_newest", "outputs", newest, unique=False)
    op.create_index(
        "ix_outputs_marked",
        "outputs",
        ["tenant_id", "mark", "created_at", "id"],
        unique=False,
        postgresql_where=sa.text("mark IS NOT NULL"),
        sqlite_where=sa.text("mark IS NOT NULL"),
    )
    op.create_table(
        "collections",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_collections")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_collections_tenant_id_name")),
    )
    op.create_table(
        "collection_items",
        sa.Column("collection_id", sa.Text(), nullable=False),
        sa.Column("output_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["collection_id"], ["collections.id"], name=op.f("fk_collection_items_collection_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["output_id"], ["outputs.id"], name=op.f("fk_collection_items_output_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("collection_id", "output_id", name=op.f("pk_collection_items")),
    )
    op.create_index(op.f("ix_collection_items_output_id"), "collection_items", ["output_id"], unique=False)
    op.create_table(
        "zips",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("output_ids", JsonText(), nullable=False),
        sa.Column("expires_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_zips")),
    )
    op.create_index(op.f("ix_zips_expires_at"), "zips", ["expires_at"], unique=False)
    op.execute(FILL.format(texts=TEXTS[op.get_bind().dialect.name]))
