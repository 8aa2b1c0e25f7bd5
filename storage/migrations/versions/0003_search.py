"""Search over titles and texts: an FTS5 index of SQLite, kept in step by triggers; and the index of the list's order.

`search_rows` gives every text a number that never changes, as the row numbers of `messages` may (VACUUM). The index
holds no copy of the texts: it reads them through the view `search_texts`. An answer enters it when it has ended, so a
checkpoint of a streaming one costs nothing here. Three letters in a row make a term, so words are found inside of others
and in languages that set no spaces. Other databases have none of this and are searched with LIKE.
"""

from alembic import op

revision = "0003"
down_revision = "0002"

_TABLES = (
    "CREATE TABLE search_rows (id INTEGER PRIMARY KEY, conversation_id VARCHAR(32) NOT NULL, message_id VARCHAR(32))",
    "CREATE UNIQUE INDEX ix_search_rows_message_id ON search_rows (message_id)",
    "CREATE UNIQUE INDEX ix_search_rows_title ON search_rows (conversation_id) WHERE message_id IS NULL",
    """CREATE VIEW search_texts AS
    SELECT r.id AS id, CASE WHEN r.message_id IS NULL THEN c.title ELSE m.content END AS text
    FROM search_rows AS r JOIN conversations AS c ON c.id = r.conversation_id
    LEFT JOIN messages AS m ON m.id = r.message_id""",
    """CREATE VIRTUAL TABLE search_index USING
    fts5(text, content = 'search_texts', content_rowid = 'id', tokenize = 'trigram')""",
)
_ENTER_TITLE = """
    INSERT INTO search_rows (conversation_id) VALUES (new.id);
    INSERT INTO search_index (rowid, text) VALUES (last_insert_rowid(), new.title);"""
_ENTER_MESSAGE = """
    INSERT INTO search_rows (conversation_id, message_id)
    SELECT new.conversation_id, new.id WHERE new.status <> 'generating'
    ON CONFLICT (message_id) DO NOTHING;
    INSERT INTO search_index (rowid, text)
    SELECT id, new.content FROM search_rows WHERE message_id = new.id;"""
_LEAVE_MESSAGE = """
    INSERT INTO search_index (search_index, rowid, text)
    SELECT 'delete', id, old.content FROM search_rows WHERE message_id = old.id;"""
_LEAVE_TITLE = """
    INSERT INTO search_index (search_index, rowid, text)
    SELECT 'delete', id, old.title FROM search_rows
    WHERE conversation_id = old.id AND message_id IS NULL;"""
_TRIGGERS = {
    "search_title_added AFTER INSERT ON conversations": _ENTER_TITLE,
    "search_title_changed AFTER UPDATE OF title ON conversations": _LEAVE_TITLE
    + """
    INSERT INTO search_index (rowid, text)
    SELECT id, new.title FROM search_rows WHERE conversation_id = new.id AND message_id IS NULL;""",
    "search_title_removed BEFORE DELETE ON conversations": _LEAVE_TITLE
    + """
    DELETE FROM search_rows WHERE conversation_id = old.id AND message_id IS NULL;""",
    "search_message_added AFTER INSERT ON messages": _ENTER_MESSAGE,
    "search_message_changed AFTER UPDATE OF content, status ON messages": _LEAVE_MESSAGE
    + _ENTER_MESSAGE,
    "search_message_removed BEFORE DELETE ON messages": _LEAVE_MESSAGE
    + """
    DELETE FROM search_rows WHERE message_id = old.id;""",
}
_EXISTING = (
    "INSERT INTO search_rows (conversation_id) SELECT id FROM conversations",
    """INSERT INTO search_rows (conversation_id, message_id)
    SELECT conversation_id, id FROM messages WHERE status <> 'generating' ORDER BY created_at""",
    "INSERT INTO search_index (rowid, text) SELECT id, text FROM search_texts",
)


def upgrade() -> None:
    op.drop_index("ix_conversations_updated_at", "conversations")
    op.create_index(
        "ix_conversations_pinned_updated_at_id", "conversations", ["pinned", "updated_at", "id"]
    )
    if op.get_bind().dialect.name == "sqlite":
        triggers = [f"CREATE TRIGGER {when} BEGIN {what} END" for when, what in _TRIGGERS.items()]
        for statement in (*_TABLES, *triggers, *_EXISTING):
            op.execute(statement)
