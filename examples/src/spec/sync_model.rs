//! The name of a synchronisation model, as typed. Owns its check and its form for people; what the
//! name means is `syncline`'s. Used by `options`, `report` and `session`.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use syncline::ModelKind;

/// A synchronisation model by name, with whatever settings the name itself carries: `bsp`. Parsing
/// checks it; reading JSON does not, so that old reports stay readable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SyncModel(String);

impl SyncModel {
    /// The name on the command line and in JSON.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// The name for people: in capitals.
    pub fn title(&self) -> String {
        self.0.to_uppercase()
    }

    /// Whether this is the model that the others are compared with.
    pub fn is_base(&self) -> bool {
        self.0 == "bsp"
    }
}

impl FromStr for SyncModel {
    type Err = String;

    /// Any name that [`ModelKind`] can be parsed from; else its error's text.
    fn from_str(name: &str) -> Result<Self, String> {
        name.parse::<ModelKind>().map_err(|error| error.to_string())?;
        Ok(Self(name.to_owned()))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The model of a name that is known.
    pub(crate) fn model(name: &str) -> SyncModel {
        name.parse().unwrap()
    }

    #[test]
    fn a_model_is_a_checked_name() {
        let osp = model("osp");
        assert_eq!((osp.name(), osp.title().as_str()), ("osp", "OSP"));
        assert!(model("bsp").is_base() && !osp.is_base());
        assert_eq!(serde_json::to_string(&osp).unwrap(), "\"osp\"");
        let error = "bps".parse::<ModelKind>().unwrap_err().to_string();
        assert_eq!("bps".parse::<SyncModel>(), Err(error));
        let stale: SyncModel = serde_json::from_str("\"ssp:3\"").unwrap();
        assert_eq!((stale.name(), stale.title().as_str()), ("ssp:3", "SSP:3"));
    }
}
