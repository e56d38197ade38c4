//! The macros that define tables and words.

/// Defines a table of the configuration: a struct with serde, its `Default` and its `KEYS`.
///
/// A field is `name: Type [Kind] = default,`. Its doc comment is the key's meaning in `docs/CONFIG.md`.
/// Without `[Kind]` the type decides what the key may hold. Without `= default` the key is required.
/// `=> "words"` instead of a default says what an absent key means; the field is then empty and not written.
///
/// A table without required keys asks serde for `default`. In the others, each key that may be absent does.
macro_rules! keys {
    (
        $(#[doc = $table_doc:literal])+
        $(#[serde($($table_serde:tt)*)])*
        pub struct $table:ident {
            $(
                $(#[doc = $doc:literal])+
                $(#[serde($($serde:tt)*)])*
                $field:ident: $type:ty $([$kind:expr])? $(= $default:expr)? $(=> $words:literal)?,
            )*
        }
    ) => {
        $(#[doc = $table_doc])+
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        $(#[serde($($table_serde)*)])*
        pub struct $table {
            $(
                $(#[doc = $doc])+
                $(#[serde($($serde)*)])*
                $(
                    #[doc = concat!("\n\nAbsent: ", $words)]
                    #[serde(default, skip_serializing_if = "crate::schema::KeyType::is_absent")]
                )?
                pub $field: $type,
            )*
        }

        impl $table {
            /// What the table is about.
            pub const DOC: &'static str = concat!($($table_doc),+).trim_ascii();

            /// Its keys, in the order of the documentation.
            pub const KEYS: $crate::schema::Keys = &[
                $($crate::schema::Key {
                    name: stringify!($field),
                    kind: keys!(@kind $type $(, $kind)?),
                    default: keys!(@fallback $type $(, = $default)? $(, => $words)?),
                    doc: concat!($($doc),+).trim_ascii(),
                },)*
            ];
        }

        impl Default for $table {
            fn default() -> $table {
                $table { $($field: keys!(@default $($default)?),)* }
            }
        }

        impl $crate::schema::KeyType for $table {
            const KIND: $crate::schema::Kind = $crate::schema::Kind::Table($table::KEYS);
        }
    };

    (@kind $type:ty) => { <$type as $crate::schema::KeyType>::KIND };
    (@kind $type:ty, $kind:expr) => { $kind };

    (@fallback $type:ty) => { $crate::schema::Fallback::Required };
    (@fallback $type:ty, => $words:literal) => { $crate::schema::Fallback::Words($words) };
    (@fallback $type:ty, = $default:expr) => {
        $crate::schema::Fallback::Value(|| {
            let value: $type = $default;
            $crate::schema::KeyType::text(&value)
        })
    };

    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
}

/// Defines the words that a key may hold, as an enum; the first one is the default.
macro_rules! choices {
    (
        $(#[doc = $enum_doc:literal])+
        pub enum $name:ident {
            $(#[doc = $first_doc:literal])+
            $first:ident = $first_word:literal,
            $(
                $(#[doc = $doc:literal])+
                $variant:ident = $word:literal,
            )*
        }
    ) => {
        $(#[doc = $enum_doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $(#[doc = $first_doc])+
            #[default]
            #[serde(rename = $first_word)]
            $first,
            $(
                $(#[doc = $doc])+
                #[serde(rename = $word)]
                $variant,
            )*
        }

        impl $crate::schema::KeyType for $name {
            const KIND: $crate::schema::Kind = $crate::schema::Kind::Choice(&[$first_word, $($word),*]);

            fn text(&self) -> String {
                let word = match self {
                    $name::$first => $first_word,
                    $($name::$variant => $word,)*
                };
                format!("\"{word}\"")
            }
        }
    };
}

pub(crate) use {choices, keys};
